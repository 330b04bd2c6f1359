// The jury of products: who is wrong, where, and how to repeat it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/product_rig.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

// Who is wrong: the vote over the hashes that several GPUs, and each GPU in several turns, made of
// the same tile of the same product. Nobody is compared with what it made at the same place alone.

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

/// Of a batch, as if it were one tile: equal in two turns or on two GPUs where all tiles' records
/// are, but for once in 2^32; with the products that differed from the first in the worst tile.
TileRecord digest_of(std::span<const TileRecord> records);

// What is done about a tile that the jury does not agree on: every GPU repeats the product, and the
// CPU recomputes the tile where the vote decides nothing.

inline constexpr const char* kDefect =
    "report a defect of bin/soak; where it follows the GPU, replace that";

/// How often a product is repeated.
struct Reruns {
  int most = 100;
  int enough = 20;  // that are wrong: more of them would say no more
  Stopped stopped = never_stopped;
};

/// What one GPU's re-runs of a product showed of a tile.
struct Look {
  int reruns = 0;
  int differing = 0;       // from the right hash; where that is not known, from the first re-run's
  int hash_disagrees = 0;  // 1: the device's hash of the tile's bytes is not the host's
  int beyond_bound = -1;   // elements that the CPU's result refutes; -1: it was not computed
  std::uint64_t hash = 0;  // of the first re-run that differed, else of the last one
};

struct LookedAt {
  Look look;
  std::vector<std::byte> bytes;  // of the tile with that hash
};

/// Repeats the product whose operands the rig holds, once at least. `host`, if not null, is the
/// CPU's result.
LookedAt look_again(ProductRig& rig, std::int64_t tile, std::optional<std::uint64_t> right,
                    const Reruns& reruns, const HostTile* host);

/// What is concluded about one juror.
struct Conclusion : Judgement {
  int juror = 0;  // -1: about all of them
};

/// From the vote on a tile and what every juror's second look showed; empty where that is nothing:
/// other operands may show more.
std::vector<Conclusion> conclude(const Ruling& ruling, std::span<const Look> looks);
/// About those whose product was refuted, by a known answer or the CPU, and is right when it is
/// repeated. `refuted` by juror: the tile; -1: none. Empty where it is all of two jurors or more.
std::vector<Conclusion> refuted_once(const std::vector<double>& refuted,
                                     std::span<const Look> looks);

/// Products of one draw of operands that are to be looked at again.
struct Suspicion {
  Operands operands = Operands::full_entropy;
  std::uint64_t seed = 0;
  std::uint64_t number = 0;             // the load's, of the draw
  std::vector<std::uint32_t> turns{0};  // that were made, as the records have them
  std::vector<double> refuted;          // by juror: the tile that is not the known answer; -1: none
  std::uint32_t refuted_turn = 0;
  Stopped stopped = never_stopped;
};

/// A tile's values as bytes of their type.
std::vector<std::byte> encoded(const HostTile& tile, DataType type);

/// Collective of the jurors: votes tile by tile, looks again, and compares the bits. `records` are
/// this rank's, of all tiles of the first turn, then of the next. Returns what concerns this rank;
/// what concerns all of them on the first one.
std::vector<Mismatch> find_evidence(ProductRig& rig, const Suspicion& suspicion,
                                    const std::vector<TileRecord>& records,
                                    const MpiSession& jurors);

}  // namespace shakedown::node
