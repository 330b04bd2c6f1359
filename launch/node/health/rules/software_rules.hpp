// The NCCL variables that people set, and what each does.
#pragma once

#include <map>
#include <string>

#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {

using NcclVariables = std::map<std::string, std::string>;

/// One judgement per variable that is set: a warning for one that takes a path or an algorithm away
/// from NCCL, for one that is not in the table, and for one whose value the host cannot follow, for
/// which `wrong` has the reason; a failure where NCCL does not start then.
Judgements explain_nccl(const NcclVariables& variables, const NcclVariables& wrong = {});

}  // namespace shakedown::node
