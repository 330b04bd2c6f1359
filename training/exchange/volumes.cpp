#include "training/exchange/volumes.hpp"

#include <fmt/format.h>

#include "common/error.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

double nothing(const StepVolume&, int, int) { return 0; }

double one_pass(double bytes, int ranks) { return bytes * (ranks - 1) / ranks; }
double all_reduced(const StepVolume& step, int ranks, int) {
  return 2 * one_pass(step.gradients, ranks);
}
double scattered_and_gathered(const StepVolume& step, int ranks, int) {
  return one_pass(step.gradients + step.weights, ranks);
}

/// Gradients are not kept from one micro-batch to the next.
double scattered_each_time(const StepVolume& step, int ranks, int) {
  return one_pass(step.accumulate * step.gradients + step.weights, ranks);
}

/// Weights are gathered for forward and again for backward. The two blocks that were last are still
/// there when the network turns round, in each micro-batch and between two.
double gathered_each_time(const StepVolume& step, int ranks, int) {
  const double gathered = step.accumulate * (2 * step.weights - step.last_blocks) -
                          (step.accumulate - 1) * step.first_blocks;
  return one_pass(step.accumulate * step.gradients + gathered, ranks);
}

/// Every rank but rank 0 sends it its gradients; the weights are broadcast along a chain, which the
/// last rank ends. The images that rank 0 hands out are not counted.
double gather_and_chain(const StepVolume& step, int ranks, int rank) {
  return (rank == 0 ? 0 : step.gradients) + (rank + 1 == ranks ? 0 : step.weights);
}

/// Rank 0 sends every other rank the weights, and they it their gradients.
double star(const StepVolume& step, int ranks, int rank) {
  return rank == 0 ? (ranks - 1) * step.weights : step.gradients;
}

}  // namespace

const std::vector<ExchangeVolume>& exchange_volumes() {
  static const std::vector<ExchangeVolume> table{
      {"none", false, nothing},
      {"all-reduce", false, all_reduced},
      {"ddp", true, all_reduced},
      {"parameter-server", false, star},
      {"parameter-server-sharded", false, scattered_and_gathered},
      {"parameter-server-async", false, star},
      {"data-parallel", false, gather_and_chain},
      {"zero1", true, scattered_and_gathered},
      {"zero2", false, scattered_each_time},
      {"fsdp", false, gathered_each_time},
  };
  return table;
}

const ExchangeVolume& find_volume(const std::string& strategy) {
  for (const ExchangeVolume& volume : exchange_volumes())
    if (strategy == volume.strategy) return volume;
  throw InternalError(fmt::format("training/volumes.cpp has no line for {}", strategy));
}

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

double bytes_sent(const StrategyOptions& options, const StepVolume& step, int ranks, int rank) {
  if (options.strategy == "parameter-server" && options.ps_exchange == "reduce-broadcast")
    return gather_and_chain(step, ranks, rank);
  return find_volume(options.strategy).bytes_sent(step, ranks, rank);
}

}  // namespace shakedown::training
