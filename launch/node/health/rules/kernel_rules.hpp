// What the kernel's reports of GPUs and NVSwitches mean.
#pragma once

#include <vector>

#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

/// One judgement per event that is neither an application's error nor a consequence of another.
std::vector<Judgement> judge_kernel_events(const std::vector<KernelEvent>& events);

}  // namespace shakedown::node
