#include "training/measure/neighbour_votes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace shakedown::training {
namespace {

/// The votes on a batch, of its own rank first.
struct Ballot {
  std::vector<int> voters;
  std::vector<Hashes> votes;

  Ballot(const Votes& all, int batch) {
    const int ranks = static_cast<int>(all.front().size());
    for (int shift = 0; shift < static_cast<int>(all.size()); ++shift) {
      voters.push_back((batch + ranks - shift) % ranks);
      votes.push_back(
          all[static_cast<std::size_t>(shift)][static_cast<std::size_t>(voters.back())]);
    }
  }
  bool unanimous() const {
    return std::all_of(votes.begin(), votes.end(),
                       [&](const Hashes& vote) { return vote == votes.front(); });
  }
  /// The voter that two others, who agree, outvote.
  std::optional<std::size_t> outvoted() const {
    if (votes.size() < 3) return std::nullopt;
    for (std::size_t v = 0; v < votes.size(); ++v)
      if (votes[(v + 1) % 3] == votes[(v + 2) % 3]) return v;
    return std::nullopt;
  }
};

std::vector<std::size_t> differing(const std::vector<Hashes>& votes) {
  std::vector<std::size_t> parameters;
  for (std::size_t p = 0; p < votes.front().size(); ++p)
    if (std::any_of(votes.begin(), votes.end(),
                    [&](const Hashes& vote) { return vote[p] != votes.front()[p]; }))
      parameters.push_back(p);
  return parameters;
}

/// A voter whose device hashed its gradients otherwise than the host: wrong without a jury.
std::optional<std::size_t> wrong_hash(const Ballot& again, const Ballot& by_host) {
  for (std::size_t v = 0; v < again.votes.size(); ++v)
    if (again.votes[v] != by_host.votes[v]) return v;
  return std::nullopt;
}

const char* text_of(Second second) {
  switch (second) {
    case Second::same_bits: return "a second computation gave the same wrong bits";
    case Second::other_bits: return "a second computation gave other wrong bits";
    case Second::right: return "a second computation was right: the error is transient";
    case Second::hash: return "the device's hash of the gradients is not that of the host's copy";
  }
  throw InternalError("unknown second computation");
}

/// The disputes in which the same rank is wrong, or of which none is decided.
struct Accusation {
  std::set<int> batches;  // of these ranks
  std::set<int> voters;
  std::size_t votes = 0;  // per batch
  std::set<std::size_t> parameters;
  Second second = Second::right;

  void add(const Dispute& dispute, const Jury& jury) {
    batches.insert(jury.ranks[static_cast<std::size_t>(dispute.batch)]);
    for (int voter : dispute.voters) voters.insert(jury.ranks[static_cast<std::size_t>(voter)]);
    votes = dispute.voters.size();
    parameters.insert(dispute.parameters.begin(), dispute.parameters.end());
    second = std::max(second, dispute.second);
  }
  /// Backward computes the last parameter's first.
  std::string where(const Jury& jury) const {
    return fmt::format("from the batch{} of {}, in {} of {} tensors, {} the first",
                       batches.size() > 1 ? "es" : "", text_of(batches), parameters.size(),
                       jury.parameters.size(), jury.parameters[*parameters.rbegin()]);
  }
  static std::string text_of(const std::set<int>& ranks) {
    return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  }
};

Verdict against(std::size_t wrong, const Accusation& accusation, const Jury& jury) {
  const int rank = jury.ranks[wrong];
  const std::string& gpu = jury.gpus[wrong];
  std::set<int> others = accusation.voters;
  others.erase(rank);
  return {
      gpu.empty() ? Scope::rank : Scope::gpu,
      gpu.empty() ? fmt::format("{}", rank) : gpu,
      Outcome::fail,
      fmt::format("rank {} computed other gradients than {} {}; {}", rank,
                  Accusation::text_of(others), accusation.where(jury), text_of(accusation.second)),
      Class::hardware,
      "take the GPU out of service; bin/soak on it shows whether it errs again: then RMA"};
}

Verdict undecided(const Accusation& accusation, const Jury& jury) {
  const std::string ranks = Accusation::text_of(accusation.voters);
  if (accusation.votes < 3)
    return {Scope::job,
            "gradients",
            Outcome::fail,
            fmt::format("{} computed different gradients {}; of two, which one is wrong is not "
                        "known",
                        ranks, accusation.where(jury)),
            std::nullopt,
            "run again on 3 ranks or more, or bin/soak on both GPUs"};
  return {Scope::job,
          "gradients",
          Outcome::inconclusive,
          fmt::format("{} computed three different gradients {}", ranks, accusation.where(jury)),
          Class::software,
          "bin/soak on these GPUs; where they pass, the step is not deterministic"};
}

}  // namespace

const char* name_of(Second second) {
  switch (second) {
    case Second::same_bits: return "same_bits";
    case Second::other_bits: return "other_bits";
    case Second::right: return "right";
    case Second::hash: return "hash";
  }
  throw InternalError("unknown second computation");
}

std::size_t Dispute::accused() const {
  if (!wrong) return 1;
  return static_cast<std::size_t>(std::find(voters.begin(), voters.end(), *wrong) - voters.begin());
}

bool differ(const Votes& votes) {
  for (std::size_t batch = 0; batch < votes.front().size(); ++batch)
    if (!Ballot(votes, static_cast<int>(batch)).unanimous()) return true;
  return false;
}

std::vector<Dispute> disputes_of(const Votes& votes, const Votes& again, const Votes& by_host) {
  std::vector<Dispute> disputes;
  for (int batch = 0; batch < static_cast<int>(votes.front().size()); ++batch) {
    const Ballot ballot(votes, batch);
    if (ballot.unanimous()) continue;
    const Ballot second(again, batch);
    Dispute dispute{batch,        ballot.voters, ballot.votes,
                    std::nullopt, Second::right, differing(ballot.votes)};
    const auto liar = wrong_hash(second, Ballot(by_host, batch));
    if (const auto voter = liar ? liar : ballot.outvoted()) {
      const std::size_t other = (*voter + 1) % ballot.votes.size();
      dispute.wrong = ballot.voters[*voter];
      if (liar)
        dispute.second = Second::hash;
      else if (second.votes[*voter] == ballot.votes[*voter])
        dispute.second = Second::same_bits;
      else if (second.votes[*voter] != ballot.votes[other])
        dispute.second = Second::other_bits;
    }
    disputes.push_back(std::move(dispute));
  }
  return disputes;
}

std::vector<Verdict> verdicts_of(const std::vector<Dispute>& disputes, const Jury& jury) {
  std::map<std::optional<int>, Accusation> by_rank;
  for (const Dispute& dispute : disputes) by_rank[dispute.wrong].add(dispute, jury);
  std::vector<Verdict> verdicts;
  for (const auto& [wrong, accusation] : by_rank)
    verdicts.push_back(wrong ? against(static_cast<std::size_t>(*wrong), accusation, jury)
                             : undecided(accusation, jury));
  return verdicts;
}

}  // namespace shakedown::training
