// The NCCL variables that people set, and what each does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

/// One judgement per variable that is set: a warning for one that takes a path or an algorithm away
/// from NCCL, and for one that is not in the table.
std::vector<Judgement> explain_nccl(const std::map<std::string, std::string>& variables);

}  // namespace shakedown::node
