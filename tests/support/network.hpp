// A whole network on one rank, as tests fill it and look into it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "resnet/network.hpp"

namespace shakedown::test {

// All of these wait.

/// Seeded weights, running statistics as at the start.
void initialise(Network& network, std::uint64_t seed);
/// Network::take() into the weights.
LoadRemarks load(Network& network, const std::vector<Tensor>& tensors, const std::string& file);
/// Weights and running statistics.
std::vector<Tensor> state(const Network& network);
/// The flat gradients with torchvision's names, scaled as they are.
std::vector<Tensor> gradients(const Network& network);
std::vector<float> read_logits(const Network& network);
/// images: N 3 H W, already normalised.
void set_batch(Network& network, std::span<const float> images,
               std::span<const std::int32_t> labels);

}  // namespace shakedown::test
