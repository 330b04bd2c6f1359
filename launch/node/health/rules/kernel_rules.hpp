// What the kernel's reports of GPUs and NVSwitches mean.
#pragma once

#include <vector>

#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {

/// One judgement per GPU and XID that is neither an application's error nor a consequence of
/// another, however often it came. What is older than the window is at most a warning.
Judgements judge_kernel_events(const std::vector<KernelEvent>& events, double window_h = 24);

}  // namespace shakedown::node
