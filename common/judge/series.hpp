// Observations in order: the looks at one subject's metric, and the subjects that are peers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/judge/limits.hpp"
#include "common/judge/observation.hpp"

namespace shakedown::judge {

/// One measurement of a subject's metric.
struct Look {
  std::size_t observation = 0;  // its index
  double value = kUnknown;      // the limit's statistic of the samples; unknown: it judges nothing
  double spread = 0;            // what measuring again changes, as a share of the value
};

/// Of one subject and metric, under the same conditions; in the order they were taken.
struct Series {
  std::string subject;  // its key
  std::vector<Look> looks;
  std::size_t last = 0;                    // of these, at the end: those of the last run
  int taken = 1;                           // number of the latest look, whether it judges or not
  std::string unjudged;                    // why no look judges it; empty: one does
  bool disturbed = false, absent = false;  // by others; not supported here

  bool judges() const { return unjudged.empty(); }
};

/// What the board's row, or the device of itself, says of a rate, in its unit; unknown where
/// neither does.
struct Peak {
  double value = kUnknown;
  std::string by;
  bool bounds = false;  // no right figure is above it: switches reduce, and a clock's is its base
};

/// Subjects of one metric, board and path class under the same conditions.
struct Peers {
  const Limit* limit = nullptr;
  std::size_t observation = 0;  // one of them, for what they have in common
  std::vector<Series> series;   // by key
  Peak peak;                    // unknown where none counts: without a share, and of CPUs
};

/// Of the observations whose metrics have a limit; sorted, so that their order does not count.
std::vector<Peers> peers_of(const std::vector<Observation>& observations, const Limits& limits,
                            const Boards& boards);

/// The time that `value` takes, as a share of the usual one's, minus 1: 0.01 is 1 % slower.
double slower_by(const Observation& of, double value, double usual);
/// The value that is `r` slower.
double slowed(const Observation& of, double usual, double r);

// The value of a look's samples, and how much measuring again would change it.

/// kUnknown if there are no samples, or one is not finite. `less_is_better`: of times.
double statistic_of(std::span<const double> samples, Statistic statistic, bool less_is_better);

/// Root mean square of what resampling the samples changes of their statistic, as a share of it:
/// the bootstrap's exact distribution, without random numbers. kUnknown as above, or where the
/// statistic is 0. The median's weights are Maritz and Jarrett's (1978): exact for an odd number.
double look_spread(std::span<const double> samples, Statistic statistic, bool less_is_better);

}  // namespace shakedown::judge
