// What a soak's windows show of the GPUs' health: throttling, counted errors, XIDs.
#pragma once

#include <string>
#include <vector>

#include "launch/node/soak/rank_identity.hpp"
#include "launch/node/soak/window.hpp"

namespace shakedown::node {

void judge_health(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts);

/// "XIDs: unknown on rank 0, ...": where the kernel's messages cannot be read. Empty: nowhere.
std::string unknown_xids(const std::vector<Window>& windows);

}  // namespace shakedown::node
