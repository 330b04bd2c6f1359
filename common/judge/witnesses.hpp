// What a subject's metric is compared with, in this order: a measured reference, first principles,
// peers. Shares are of time: r = time / usual time - 1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/judge/judge.hpp"
#include "common/judge/limits.hpp"
#include "common/judge/observation.hpp"
#include "common/judge/references.hpp"
#include "common/judge/series.hpp"

namespace shakedown::judge {

/// What one witness shows of one series.
struct Testimony {
  Witness witness = Witness::none;
  double usual = kUnknown;     // in the metric's unit
  double floor = 0;            // r from which on it is slow
  double finds = 0;            // r that it finds in 99 of 100
  std::vector<double> r = {};  // of each look that judges; infinite: nothing moved
  std::size_t last = 0;        // of these, at the end: those of the last run
  bool may_fail = true;        // else it only warns: few units, other versions
  bool undecided = false;      // slow, and nothing says which side is right
  std::string text = {};  // "reference nvidia-h100 (4 units, 2026-11-26)", "the fastest of 2 peers"

  int slow() const;  // looks in which it is
  bool passes() const { return slow() == 0; }
  /// In all looks of the last run: an earlier one that was fast does not clear a later one.
  bool fails() const;
  double least() const;  // r of the last run where that fails, else of all
};

/// Of a rate.
Peak peak_of(const Observation& o, const Boards& boards);

/// Of each series of `peers`, in their order, what there is.
struct Testimonies {
  std::vector<std::vector<Testimony>> of;
  std::string missed;  // why no reference compares; empty: one does
  const ReferenceFigure* figure = nullptr;
  bool all_alike = false;  // two or more, and all are slow by the reference
};
Testimonies hear(const Peers& peers, const std::vector<Observation>& observations,
                 const References& references);

// Class and action of a slow rate: what explains it (clock, power, heat) comes before the device.

struct Explanation {
  std::string cause;  // what explains it; empty: nothing does
  std::optional<Class> class_;
  std::string action;
  bool warns = false;  // explained, and within what such a circumstance may cost
};

/// What else is known of the slow device.
struct Context {
  double usual_power_limit_w = kUnknown, usual_temperature_c = kUnknown;
  bool memory_slow = false;  // its device memory is, too
  bool all_alike = false;    // all devices are, by a reference
};

/// `r`: how much slower it is, of the look that was least so.
Explanation explain(const Observation& slow, double r, const Testimony& said, const Limit& limit,
                    const Context& context);

}  // namespace shakedown::judge
