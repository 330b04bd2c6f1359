// Whether a training may continue from a checkpoint, and what will differ if it does.
#pragma once

#include <string>
#include <vector>

#include "training/checkpoint/checkpoint.hpp"

namespace shakedown::training {

/// The order of the images is a function of seed, epoch and position, and an update uses one global
/// batch of them: with the same facts a training continues on the same images on any number of
/// ranks. Throws UsageError naming `file` and every fixed fact that differs. Returns the options
/// that do, as "learning_rate 0.1 (was 0.2)".
std::vector<std::string> check_continues(const RunFacts& saved, const RunFacts& now,
                                         const std::string& file);

}  // namespace shakedown::training
