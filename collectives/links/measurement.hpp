// All that bin/link_matrix measures, recorded as it comes, shown and judged.
#pragma once

#include "collectives/links/options.hpp"
#include "common/exit_code.hpp"

namespace shakedown {
class MpiSession;
class Record;
}  // namespace shakedown

namespace shakedown::collectives {

/// Collective.
ExitCode measure_links(const LinkOptions& options, Backend& backend, MpiSession& session,
                       Record& record);

}  // namespace shakedown::collectives
