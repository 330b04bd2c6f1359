// From products on which GPUs disagree to what is wrong, where, and how to repeat it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/jury.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/product_rig.hpp"
#include "launch/node/soak/soak_run.hpp"

namespace shakedown::node {

// What is done about a tile that the jury does not agree on: every GPU repeats the product, and the
// CPU recomputes the tile where the vote decides nothing.

inline constexpr int kReruns = 100;

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

/// Repeats the product whose operands the rig holds. `host`, if not null, is the CPU's result.
LookedAt look_again(ProductRig& rig, std::int64_t tile, std::optional<std::uint64_t> right,
                    int reruns, const HostTile* host);

/// What is concluded about one juror.
struct Conclusion : Judgement {
  int juror = 0;      // -1: about all of them
  bool open = false;  // other operands may show more
};

/// From the vote on a tile and what every juror's second look showed.
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
};

/// A tile's values as bytes of their type.
std::vector<std::byte> encoded(const HostTile& tile, DataType type);

/// Collective of the jurors: votes tile by tile, looks again, and compares the bits. `records` are
/// this rank's, of all tiles of the first turn, then of the next. Returns what concerns this rank;
/// what concerns all of them on the first one.
std::vector<Mismatch> find_evidence(ProductRig& rig, const Suspicion& suspicion,
                                    const std::vector<TileRecord>& records,
                                    const MpiSession& jurors);

/// Of a product by the hash that capsules of format 2 have: every re-run's tile is hashed here.
Look look_by_old_hash(ProductRig& rig, std::int64_t tile, std::uint64_t right, int reruns);

// bin/soak --replay: a capsule's product, repeated on every rank's device.

/// What the ranks' re-runs say of their devices; where all of two or more differ, of none of them.
std::vector<Verdict> verdicts_of(const std::vector<Look>& looks, const Capsule& capsule,
                                 const std::vector<std::string>& uuids);

/// Collective. FAIL where a product's tile is not what the capsule expects, or, where it does not
/// know that, where products differ from one another.
ExitCode replay_capsule(const SoakOptions& options, Backend& backend, MpiSession& session,
                        Record& record);

}  // namespace shakedown::node
