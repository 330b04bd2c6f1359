// Whether weights and running statistics are what a network can compute with.
#pragma once

#include <span>
#include <string>

#include "resnet/architecture.hpp"

namespace shakedown::training {

/// The first tensor, by torchvision's name, with an element that is not finite, or with a negative
/// running variance; "" where there is none. `master` is in the flat order; empty `statistics` are
/// not looked at.
std::string unsound_tensor(const ParameterTable& table, std::span<const float> master,
                           std::span<const float> statistics);

}  // namespace shakedown::training
