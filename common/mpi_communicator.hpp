// The communicator that is in every build: MPI on host memory. Device memory is staged through
// pinned host memory, and the bytes so copied are counted.
#pragma once

#include <memory>

#include "common/communicator.hpp"

namespace shakedown {

class MpiSession;

/// All ranks of the session. `device` makes the staging copies and must outlive the communicator.
std::unique_ptr<Communicator> make_mpi_communicator(const MpiSession& session, Device& device);

}  // namespace shakedown
