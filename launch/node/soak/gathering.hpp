// What ranks exchange of a window next to its numbers. Collective.
#pragma once

#include <optional>
#include <vector>

#include "common/mpi_session.hpp"
#include "launch/node/soak/kernel_watch.hpp"
#include "launch/node/soak/load.hpp"

namespace shakedown::node {

/// By rank.
std::vector<std::vector<Mismatch>> gather(const MpiSession& session,
                                          const std::vector<Mismatch>& found);
std::vector<std::optional<std::vector<KernelEvent>>> gather(
    const MpiSession& session, const std::optional<std::vector<KernelEvent>>& events);

}  // namespace shakedown::node
