#include "common/backend.hpp"
#include "common/mpi_communicator.hpp"

namespace shakedown::cpu {

std::unique_ptr<Communicator> make_communicator(const MpiSession& session, Device& device,
                                                MpiAlgorithm algorithm) {
  return make_mpi_communicator(session, device, algorithm);
}

}  // namespace shakedown::cpu
