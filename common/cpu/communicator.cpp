#include "common/backend.hpp"
#include "common/mpi_communicator.hpp"

namespace shakedown::cpu {

std::unique_ptr<Communicator> make_communicator(const MpiSession& session, Device& device) {
  return make_mpi_communicator(session, device);
}

}  // namespace shakedown::cpu
