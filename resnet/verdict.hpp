// Whether one fused kernel or several is the better choice, from timings of both.
#pragma once

#include <span>

#include "common/statistics.hpp"

namespace shakedown {

/// A fused kernel moves fewer bytes, which saves energy: of a step at the power limit that is time,
/// which a timing at full clocks does not show. So it may take this much longer.
inline constexpr double kFusedMargin = 1.04;

/// Compares the medians of two interleaved samples.
inline bool prefers_fused(std::span<const double> fused_ms, std::span<const double> unfused_ms) {
  return median_of(fused_ms) <= kFusedMargin * median_of(unfused_ms);
}

}  // namespace shakedown
