#include "launch/node/soak/jury.hpp"

#include <algorithm>
#include <vector>

#include "common/ballot.hpp"

namespace shakedown::node {

Ruling vote(std::span<const TileRecord> jurors) {
  Ruling ruling;
  std::vector<const std::uint64_t*> hashes;  // the unsteady jurors have no vote
  for (std::size_t i = 0; i < jurors.size(); ++i) {
    const bool steady = jurors[i].differing == 0;
    hashes.push_back(steady ? &jurors[i].first : nullptr);
    if (!steady) ruling.wrong.push_back(static_cast<int>(i));
  }
  if (ruling.wrong.size() == jurors.size()) {
    if (jurors.size() == 1) return ruling;
    return {{}, {}, "every GPU differs from itself: the products are not reproducible here"};
  }
  const Ballot ballot = count_votes(hashes);
  const bool of_two = jurors.size() == 2;  // the steady one is right
  if (!ballot.majority && !(of_two && ballot.unanimous))
    return {
        {}, {}, of_two ? "two GPUs differ, both steadily" : "no hash has a majority of the GPUs"};
  ruling.right = *hashes[ballot.leader];
  for (const std::size_t juror : ballot.outvoted) ruling.wrong.push_back(static_cast<int>(juror));
  std::sort(ruling.wrong.begin(), ruling.wrong.end());
  return ruling;
}

std::vector<TileFinding> vote_by_tile(std::span<const std::vector<TileRecord>> records) {
  std::vector<TileFinding> findings;
  if (records.empty()) return findings;
  std::vector<TileRecord> jurors(records.size());
  for (std::size_t tile = 0; tile < records.front().size(); ++tile) {
    for (std::size_t i = 0; i < records.size(); ++i) jurors[i] = records[i].at(tile);
    Ruling ruling = vote(jurors);
    if (!ruling.agreed()) findings.push_back({static_cast<std::int64_t>(tile), std::move(ruling)});
  }
  return findings;
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
