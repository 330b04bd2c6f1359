// bin/soak --replay: a capsule's product, repeated on every rank's device.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/second_look.hpp"
#include "launch/node/soak/soak_options.hpp"

namespace shakedown::node {

/// What the ranks' re-runs say of their devices; where all of two or more differ, of none of them.
std::vector<Verdict> verdicts_of(const std::vector<Look>& looks, const Capsule& capsule,
                                 const std::vector<std::string>& uuids);

/// Collective. FAIL where a product's tile is not what the capsule expects, or, where it does not
/// know that, where products differ from one another.
ExitCode replay_capsule(const SoakOptions& options, Backend& backend, MpiSession& session,
                        Record& record);

}  // namespace shakedown::node
