// bin/soak --replay: a capsule's product, repeated on every rank's device.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "launch/node/soak/soak_options.hpp"

namespace shakedown::node {

/// Collective. FAIL where a product's tile is not what the capsule expects, or, where it does not
/// know that, where products differ from one another.
ExitCode replay_capsule(const SoakOptions& options, Backend& backend, MpiSession& session,
                        Record& record);

}  // namespace shakedown::node
