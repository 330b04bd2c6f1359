// Who is wrong: the vote over the hashes that several GPUs, and each GPU in several turns, made of
// the same tile of the same product. Nobody is compared with what it made at the same place alone.
#pragma once

#include <cstdint>
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
  std::uint32_t turn = 0;              // that dissents, is unsteady, or has no majority: to repeat
  bool by_turns = false;               // only steady turns of the one juror contradict one another
  bool agreed() const { return wrong.empty() && undecided.empty(); }
};

/// Jurors are GPUs of one model with one algorithm, whose bits must be the same in every turn;
/// `votes` has the turns of the first juror, then those of the next. A turn whose products differ
/// among themselves is unsteady, and has no vote. A juror with such a turn, or whose turns
/// contradict one another, differs from itself: it is wrong where others do not. Wrong are also the
/// votes that a majority of all contradicts, and their jurors. Of two jurors that differ from one
/// another alone, or where there is no such majority, the vote decides nothing. A juror on its own
/// is wrong wherever it differs from itself; what is right is known where most of its turns are
/// alike.
Ruling vote(std::span<const TileRecord> votes, std::uint32_t turns = 1);

/// What all ranks' rulings on the tiles of one product come to.
struct TileFinding {
  std::int64_t tile = 0;
  Ruling ruling;
};
struct TileVotes {
  std::vector<TileFinding> findings;  // only tiles that are not agreed on; by turn, then by tile
  std::vector<std::optional<std::uint64_t>> right;  // by tile: the hash that most have
};
/// `records` is by juror, each of all tiles of the first turn, then of the next.
TileVotes vote_by_tile(std::span<const std::vector<TileRecord>> records, std::uint32_t turns = 1);

/// Bits of a batch that are equal in two turns or on two GPUs where all tiles' records are, but for
/// once in 2^32.
struct Digest {
  std::uint64_t hash = 0;
  std::uint64_t differing = 0;  // products that differed from the first in the worst tile
  bool operator==(const Digest&) const = default;
};
Digest digest_of(std::span<const TileRecord> records);

}  // namespace shakedown::node
