// The findings as people read them.
#pragma once

#include <string>
#include <vector>

#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

/// "PASS  check  what was found", passing lines that are alike once; what does not apply; the
/// others, worst first, under the names of their nodes, with " -> what to do".
std::string findings_table(const std::vector<Finding>& findings);

}  // namespace shakedown::node
