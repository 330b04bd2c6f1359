// What the judged rates and the statements amount to: findings, a verdict per node, the job's.
#pragma once

#include <map>
#include <string>

#include "common/judge/judge.hpp"

namespace shakedown::judge {

/// Fills in all but judged and would_have_found. `named`: whether the user named the references.
/// `missed`: by metric, why none of them compares.
void conclude(const Evidence& evidence, bool named,
              const std::map<std::string, std::string>& missed, const Request& request,
              Judgement& judgement);

}  // namespace shakedown::judge
