#include "training/exchange/volumes.hpp"

#include "common/error.hpp"

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

namespace {

/// Weights are gathered for forward and again for backward. The two blocks that were last are still
/// there when the network turns round, in each micro-batch and between two.
double gathered_bytes(const StepVolume& step) {
  return step.accumulate * (2 * step.weights - step.last_blocks) -
         (step.accumulate - 1) * step.first_blocks;
}

/// The share of a volume that the rank sends.
double share_sent(const Transfer& transfer, int ranks, int rank) {
  const double pass = static_cast<double>(ranks - 1) / ranks;
  switch (transfer.pattern) {
    case Pattern::all_reduce: return 2 * pass;
    case Pattern::pass:
    case Pattern::shards: return pass;
    case Pattern::star:
      if (transfer.volume == Volume::gradients) return rank == 0 ? 0 : 1;
      return rank == 0 ? ranks - 1 : 0;
    case Pattern::chain: return rank + 1 == ranks ? 0 : 1;
  }
  throw InternalError("an unknown pattern");
}

}  // namespace

double sent_in(const std::vector<Transfer>& transfers, const StepVolume& step, int ranks,
               int rank) {
  double sent = 0;
  for (const Transfer& t : transfers) {
    if (t.volume == Volume::inputs) continue;
    double bytes = t.volume == Volume::gradients ? step.gradients : step.weights;
    if (t.each_micro_batch) bytes *= step.accumulate;
    if (t.pieces == Pieces::gathered_blocks) bytes += gathered_bytes(step);
    sent += bytes * share_sent(t, ranks, rank);
  }
  return sent;
}

}  // namespace shakedown::training
