#include "training/measure/neighbour_votes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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

Verdict verdict_of(const Dispute& dispute, const Jury& jury) {
  std::vector<int> ranks;
  for (int voter : dispute.voters) ranks.push_back(jury.ranks[static_cast<std::size_t>(voter)]);
  const std::string where =
      fmt::format("of rank {}'s batch, in {} of {} tensors, {} the first",
                  jury.ranks[static_cast<std::size_t>(dispute.batch)], dispute.parameters.size(),
                  jury.parameters.size(), jury.parameters[dispute.parameters.back()]);
  Verdict verdict{Scope::job, "gradients", Outcome::fail, ""};
  if (dispute.wrong) {
    const auto wrong = static_cast<std::size_t>(*dispute.wrong);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(dispute.accused()));
    const std::string& gpu = jury.gpus[wrong];
    verdict.scope = gpu.empty() ? Scope::rank : Scope::gpu;
    verdict.name = gpu.empty() ? fmt::format("{}", jury.ranks[wrong]) : gpu;
    verdict.class_ = Class::hardware;
    verdict.cause = fmt::format("rank {} computed other gradients than rank{} {} {}; {}",
                                jury.ranks[wrong], ranks.size() > 1 ? "s" : "",
                                fmt::join(ranks, " and "), where, text_of(dispute.second));
    verdict.action =
        "take the GPU out of service; bin/soak on it shows whether it errs again: then RMA";
  } else if (dispute.voters.size() < 3) {
    verdict.cause = fmt::format(
        "ranks {} computed different gradients {}; of two, which one is wrong is not known",
        fmt::join(ranks, " and "), where);
    verdict.action = "run again on 3 ranks or more, or bin/soak on both GPUs";
  } else {
    verdict.outcome = Outcome::inconclusive;
    verdict.class_ = Class::software;
    verdict.cause = fmt::format("ranks {} computed three different gradients {}",
                                fmt::join(ranks, ", "), where);
    verdict.action = "bin/soak on these GPUs; where they pass, the step is not deterministic";
  }
  return verdict;
}

}  // namespace shakedown::training
