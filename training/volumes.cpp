#include "training/volumes.hpp"

#include <fmt/format.h>

#include "common/error.hpp"

namespace shakedown {
namespace {

double nothing(double, int, int) { return 0; }

double one_pass(double bytes, int ranks) { return bytes * (ranks - 1) / ranks; }
double two_passes(double bytes, int ranks, int) { return 2 * one_pass(bytes, ranks); }
double three_passes(double bytes, int ranks, int) { return 3 * one_pass(bytes, ranks); }

/// Every rank but rank 0 sends it its gradients; the weights are broadcast along a chain, which the
/// last rank ends. The images that rank 0 hands out are not counted.
double gather_and_chain(double bytes, int ranks, int rank) {
  const double gradients = rank == 0 ? 0 : bytes;
  return gradients + (rank + 1 == ranks ? 0 : bytes);
}

/// Rank 0 sends every other rank the weights, and they it their gradients.
double star(double bytes, int ranks, int rank) { return rank == 0 ? (ranks - 1) * bytes : bytes; }

}  // namespace

const std::vector<ExchangeVolume>& exchange_volumes() {
  static const std::vector<ExchangeVolume> table{
      {"none", false, nothing},
      {"all-reduce", false, two_passes},
      {"ddp", true, two_passes},
      {"parameter-server", false, star},
      {"parameter-server-sharded", false, two_passes},
      {"parameter-server-async", false, star},
      {"data-parallel", false, gather_and_chain},
      {"zero1", true, two_passes},
      {"zero2", false, two_passes},
      {"fsdp", false, three_passes},
  };
  return table;
}

const ExchangeVolume& find_volume(const std::string& strategy) {
  for (const ExchangeVolume& volume : exchange_volumes())
    if (strategy == volume.strategy) return volume;
  throw InternalError(fmt::format("training/volumes.cpp has no line for {}", strategy));
}

}  // namespace shakedown
