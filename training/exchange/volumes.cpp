#include "training/exchange/volumes.hpp"

namespace shakedown::training {

StepVolume volume_of(const ParameterTable& table, DataType gradients, DataType weights,
                     int accumulate) {
  const auto bytes = [&](int first_block, int last_block) {
    std::size_t elements = 0;
    for (int block = first_block; block <= last_block; ++block)
      elements += table.payload_in(table.block_range(block));
    return static_cast<double>(elements * size_of(weights));
  };
  const int last = table.blocks() - 1;
  return {static_cast<double>(table.payload_count() * size_of(gradients)), bytes(0, last),
          bytes(0, 1), bytes(last - 1, last), accumulate};
}

double sent_in_pass(double bytes, int ranks) { return bytes * (ranks - 1) / ranks; }

double sent_in_star(const StepVolume& step, int ranks, int rank) {
  return rank == 0 ? (ranks - 1) * step.weights : step.gradients;
}

double sent_in_chain(const StepVolume& step, int ranks, int rank) {
  return (rank == 0 ? 0 : step.gradients) + (rank + 1 == ranks ? 0 : step.weights);
}

}  // namespace shakedown::training
