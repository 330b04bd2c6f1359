// Whether each rank computes with what was meant for it: the batch that another rank made, and the
// weights that an update made, wherever they were updated.
#pragma once

#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

// Collective, and the same on every rank. They wait.

/// Where one rank makes the batches of all: what is wrong with the first epoch's first batch, which
/// the network then has; "" where each rank has its own, bit by bit.
struct ReceivedInputs {
  bool compared = false;  // one rank makes them
  std::string cause;
};
ReceivedInputs check_inputs(Engine& engine, BatchSource& batches, const MpiSession& session);

/// The first rank and block whose weights, as its network reads them block by block, are not
/// `master` (all of them, in the flat order), rounded; or "".
std::string check_published(Engine& engine, const std::vector<float>& master,
                            const MpiSession& session);

}  // namespace shakedown::training
