// How many bytes each strategy's exchange takes in theory, to hold measurements against.
#pragma once

#include <string>
#include <vector>

namespace shakedown {

struct ExchangeVolume {
  const char* strategy;
  /// Whether it exchanges buckets, whose cap then is part of the configuration.
  bool buckets;
  /// Bytes that `rank` of `ranks` sends in a step, of gradients and weights; `gradient_bytes` are a
  /// whole set of either. Collectives count as their bandwidth-optimal rings (Patarasuk and Yuan,
  /// J. Parallel Distrib. Comput. 69, 2009): an all-reduce 2 (ranks - 1) / ranks times its buffer,
  /// a reduce-scatter or all-gather half of that.
  double (*bytes_sent)(double gradient_bytes, int ranks, int rank);
};

/// One for each strategy that there is, or is designed.
const std::vector<ExchangeVolume>& exchange_volumes();
/// Throws InternalError where there is none.
const ExchangeVolume& find_volume(const std::string& strategy);

}  // namespace shakedown
