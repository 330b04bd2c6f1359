// From products on which GPUs disagree to what is wrong, where, and how to repeat it.
#pragma once

#include <vector>

#include "common/mpi_session.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/second_look.hpp"

namespace shakedown::node {

/// A batch of products that is to be looked at again.
struct Suspicion {
  Operands operands = Operands::full_entropy;
  std::uint64_t seed = 0;
  std::uint64_t batch = 0;
  std::vector<double> refuted;  // by juror: the tile that is not the known answer; -1: none
};

/// A tile's values as bytes of their type.
std::vector<std::byte> encoded(const HostTile& tile, DataType type);

/// Collective of the jurors: votes tile by tile, looks again, and compares the bits. `records` are
/// this rank's. Returns what concerns this rank; what concerns all of them on the first one.
std::vector<Mismatch> find_evidence(ProductRig& rig, const Suspicion& suspicion,
                                    const std::vector<TileRecord>& records,
                                    const MpiSession& jurors);

}  // namespace shakedown::node
