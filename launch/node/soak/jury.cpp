#include "launch/node/soak/jury.hpp"

#include <algorithm>
#include <map>

namespace shakedown::node {

Ruling vote(std::span<const TileRecord> jurors) {
  Ruling ruling;
  std::map<std::uint64_t, std::size_t> votes;  // of the steady jurors
  for (std::size_t i = 0; i < jurors.size(); ++i) {
    if (jurors[i].differing > 0)
      ruling.wrong.push_back(static_cast<int>(i));
    else
      ++votes[jurors[i].first];
  }
  if (votes.empty()) {
    if (jurors.size() == 1) return ruling;
    return {{}, {}, "every GPU differs from itself: the products are not reproducible here"};
  }
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool split = votes.size() > 1;
  // Of two, the steady one is right; of more, most of all must agree.
  if (split || jurors.size() > 2) {
    if (2 * most->second <= jurors.size())
      return {{},
              {},
              jurors.size() == 2 ? "two GPUs differ, both steadily"
                                 : "no hash has a majority of the GPUs"};
  }
  ruling.right = most->first;
  for (std::size_t i = 0; i < jurors.size(); ++i)
    if (jurors[i].differing == 0 && jurors[i].first != most->first)
      ruling.wrong.push_back(static_cast<int>(i));
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
