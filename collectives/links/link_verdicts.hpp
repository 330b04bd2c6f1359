// Judges what bin/link_matrix measured: a pure function.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/measurement.hpp"
#include "common/verdict.hpp"

namespace shakedown::collectives {

struct LinkVerdicts {
  std::string comparisons;        // a line for each kind of link: its median, and what is slow
  std::vector<Verdict> findings;  // corruptions, outliers, limits that were missed
  Verdict job;                    // what they amount to
};

/// `bytes`: of a message whose bandwidth was measured.
LinkVerdicts judge_links(const LinkOptions& options, const NodeMap& nodes, double bytes,
                         const LinkResults& results);

}  // namespace shakedown::collectives
