// One figure of a pair of ranks: a `metric` line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/judge/observation.hpp"

namespace shakedown::collectives {

struct LinkFigure {
  std::string metric;  // "link/copy_engine/one_way"
  int from = 0;
  int to = 0;
  bool both_ways = false;
  std::map<std::string, std::string> conditions;
  std::vector<double> samples;  // GB/s, or us
  std::uint64_t wrong = 0;      // words that arrived wrong
  int look = 1;
  judge::Taken taken = judge::Taken::measured;
};

/// Samples of a look, as limits.json needs them of a link.
inline constexpr int kLinkSamples = 5;

}  // namespace shakedown::collectives
