// Who is wrong: the vote over the hashes that several GPUs made of the same tile of the same
// product. Nobody is compared with its own first output alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

struct Ruling {
  std::vector<int> wrong;              // indices of the jurors; none: all agree, or undecided
  std::optional<std::uint64_t> right;  // the hash that the others have
  std::string undecided;               // why the vote decides nothing; empty: it did
  bool agreed() const { return wrong.empty() && undecided.empty(); }
};

/// Jurors are GPUs of one model with one algorithm, whose bits must be the same. A juror whose
/// products of one batch differ among themselves is unsteady, and wrong where others are steady; of
/// the steady ones those are wrong that a majority of all jurors contradicts. Of two steady jurors
/// that differ, or where there is no such majority, the vote decides nothing. A juror on its own
/// can only be found unsteady.
Ruling vote(std::span<const TileRecord> jurors);

/// What all ranks' rulings on the tiles of one batch come to.
struct TileFinding {
  std::int64_t tile = 0;
  Ruling ruling;
};
/// `records` is by juror, each of all tiles. Only tiles that are not agreed on.
std::vector<TileFinding> vote_by_tile(std::span<const std::vector<TileRecord>> records);

/// Bits of a batch that are equal on two GPUs where all tiles' records are, but for once in 2^64.
struct Digest {
  std::uint64_t hash = 0;
  std::uint64_t differing = 0;  // products that differed from the first in the worst tile
  bool operator==(const Digest&) const = default;
};
Digest digest_of(std::span<const TileRecord> records);

}  // namespace shakedown::node
