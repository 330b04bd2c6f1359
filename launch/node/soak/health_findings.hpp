// What a soak's windows show of the GPUs' health: throttling, counted errors, XIDs.
#pragma once

#include <string>
#include <vector>

#include "launch/node/soak/rank_identity.hpp"
#include "launch/node/soak/window.hpp"

namespace shakedown::node {

void judge_health(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts);

/// "XIDs not known on rank 0: ...": what could not be watched of a GPU, and is no reason to doubt
/// what was computed.
std::vector<std::string> unknown_health(const std::vector<Window>& windows,
                                        const std::vector<RankIdentity>& ranks);

}  // namespace shakedown::node
