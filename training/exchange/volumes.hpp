// What a step exchanges, in bytes, and how many of them a rank sends in theory: measured traffic is
// compared with it.
#pragma once

#include "common/types.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {

/// What a rank has to exchange in a step; bytes, as they travel.
struct StepVolume {
  double gradients = 0;
  double weights = 0;
  // Bytes of the weights of the network's first two blocks, and of its last two.
  double first_blocks = 0;
  double last_blocks = 0;
  int accumulate = 1;  // micro-batches
};
/// The volume of a network whose gradients and weights are exchanged in these types.
StepVolume volume_of(const ParameterTable& table, DataType gradients, DataType weights,
                     int accumulate);

// Bytes that a rank sends. Collectives count as their bandwidth-optimal rings (Patarasuk and Yuan,
// J. Parallel Distrib. Comput. 69, 2009).

/// In a reduce-scatter or all-gather of a buffer of `bytes`; an all-reduce is both.
double sent_in_pass(double bytes, int ranks);
/// Rank 0 sends every other rank the weights, and they it their gradients.
double sent_in_star(const StepVolume& step, int ranks, int rank);
/// Every rank but rank 0 sends it its gradients; the weights are broadcast along a chain, which the
/// last rank ends.
double sent_in_chain(const StepVolume& step, int ranks, int rank);

}  // namespace shakedown::training
