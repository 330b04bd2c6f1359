// The communicator that is in every build: MPI on host memory. Device memory is staged through
// pinned host memory, and the bytes so copied are counted. So is memory that the device does not
// own, uncounted: MPI may use it for longer than its owner lives.
#pragma once

#include <memory>

#include "common/communicator.hpp"

namespace shakedown {

class MpiSession;

/// All ranks of the session. `device` makes the staging copies and must outlive the communicator;
/// after a time-out its memory is never released.
std::unique_ptr<Communicator> make_mpi_communicator(const MpiSession& session, Device& device,
                                                    MpiAlgorithm algorithm = MpiAlgorithm::own);

}  // namespace shakedown
