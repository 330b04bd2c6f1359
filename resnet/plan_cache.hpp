// The fastest plans, kept in a file, so that a later run of the same build on the same GPU model
// does not time them again. An entry is a hint: if cuDNN no longer offers the plan, it is timed
// again; a corrupt file is ignored. The file has sections for other builds and GPU models too.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>

#include "common/statistics.hpp"

namespace shakedown {

class PlanCache {
 public:
  /// `file` empty: nothing outlives the run. `machine`: GPU and library versions; the file has a
  /// section for each, valid for the `build` that wrote it last.
  PlanCache(std::string file, std::string machine, std::string build);

  /// The plan's name.
  std::optional<std::string> find(const std::string& convolution) const;
  void keep(const std::string& convolution, const std::string& plan);
  /// Merges new entries into the file, atomically. Returns false if it cannot be written, which is
  /// no error.
  bool save();

 private:
  std::string file_;
  std::string machine_;
  std::string build_;
  std::map<std::string, std::string> plans_;
  bool new_ = false;
};

// Whether one fused kernel or several is the better choice, from timings of both.

/// A fused kernel moves fewer bytes, which saves energy: of a step at the power limit that is time,
/// which a timing at full clocks does not show. So it may take this much longer.
inline constexpr double kFusedMargin = 1.04;

/// Compares the medians of two interleaved samples.
inline bool prefers_fused(std::span<const double> fused_ms, std::span<const double> unfused_ms) {
  return median_of(fused_ms) <= kFusedMargin * median_of(unfused_ms);
}

}  // namespace shakedown
