#include "launch/node/soak/jury.hpp"

#include <algorithm>
#include <vector>

#include "common/ballot.hpp"
#include "common/ensure.hpp"

namespace shakedown::node {

namespace {

using Votes = std::span<const std::uint64_t* const>;

/// Whether a juror's turns are steady and alike.
bool is_consistent(Votes turns) {
  return std::ranges::all_of(turns, [&](const std::uint64_t* vote) {
    return vote != nullptr && turns.front() != nullptr && *vote == *turns.front();
  });
}

std::string no_majority(std::size_t jurors) {
  return jurors == 2 ? "two GPUs differ, both steadily" : "no hash has a majority of the GPUs";
}

}  // namespace

Ruling vote(std::span<const TileRecord> votes, std::uint32_t turns) {
  ENSURE(turns > 0 && votes.size() % turns == 0, "each juror has all turns");
  const std::size_t jurors = votes.size() / turns;
  std::vector<const std::uint64_t*> hashes;  // the unsteady have no vote
  for (const TileRecord& one : votes) hashes.push_back(one.differing == 0 ? &one.first : nullptr);
  std::vector<const std::uint64_t*> consistent;  // a vote of each juror that has one
  Ruling ruling;
  for (std::size_t juror = 0; juror < jurors; ++juror)
    if (is_consistent(Votes(hashes).subspan(juror * turns, turns)))
      consistent.push_back(hashes[juror * turns]);
    else
      ruling.wrong.push_back(static_cast<int>(juror));
  const bool any_steady =
      std::ranges::any_of(hashes, [](const auto* hash) { return hash != nullptr; });
  const Ballot ballot = any_steady ? count_votes(hashes) : Ballot();
  std::uint32_t first = turns;  // turn that is unsteady or outvoted
  for (std::size_t at = 0; at < votes.size(); ++at)
    if (hashes[at] == nullptr || *hashes[at] != *hashes[ballot.leader])
      first = std::min(first, static_cast<std::uint32_t>(at % turns));
  ruling.turn = first % turns;
  if (ruling.wrong.size() == jurors && jurors > 1)
    return {{},
            {},
            "every GPU differs from itself: the products are not reproducible here",
            ruling.turn};
  if (any_steady && (ballot.majority || (jurors == 1 && ballot.unanimous)))
    ruling.right = *hashes[ballot.leader];
  else if (jurors == 2 && consistent.size() == 1)
    ruling.right = *consistent.front();
  else if (jurors > 1)
    return {{}, {}, no_majority(jurors), ruling.turn};
  ruling.by_turns = jurors == 1 && !ruling.wrong.empty() &&
                    std::ranges::none_of(hashes, [](const auto* hash) { return hash == nullptr; });
  for (const std::size_t at : ballot.outvoted) ruling.wrong.push_back(static_cast<int>(at / turns));
  std::ranges::sort(ruling.wrong);
  ruling.wrong.erase(std::unique(ruling.wrong.begin(), ruling.wrong.end()), ruling.wrong.end());
  return ruling;
}

TileVotes vote_by_tile(std::span<const std::vector<TileRecord>> records, std::uint32_t turns) {
  TileVotes all;
  if (records.empty()) return all;
  const std::size_t tiles = records.front().size() / turns;
  std::vector<TileRecord> votes(records.size() * turns);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (std::size_t at = 0; at < votes.size(); ++at)
      votes[at] = records[at / turns].at(at % turns * tiles + tile);
    Ruling ruling = vote(votes, turns);
    all.right.push_back(ruling.right);
    if (!ruling.agreed())
      all.findings.push_back({static_cast<std::int64_t>(tile), std::move(ruling)});
  }
  std::ranges::stable_sort(all.findings, {},
                           [](const TileFinding& one) { return one.ruling.turn; });
  return all;
}

Digest digest_of(std::span<const TileRecord> records) {
  Digest digest;
  for (std::size_t tile = 0; tile < records.size(); ++tile) {
    digest.hash += number_format::hash(records[tile].first, tile);
    digest.differing = std::max<std::uint64_t>(digest.differing, records[tile].differing);
  }
  return digest;
}

}  // namespace shakedown::node
