// The value of a look's samples, and how much measuring again would change it.
#pragma once

#include <span>

#include "common/judge/limits.hpp"

namespace shakedown::judge {

/// kUnknown if there are no samples, or one is not finite. `less_is_better`: of times.
double statistic_of(std::span<const double> samples, Statistic statistic, bool less_is_better);

/// Root mean square of what resampling the samples changes of their statistic, as a share of it:
/// the bootstrap's exact distribution, without random numbers. kUnknown as above, or where the
/// statistic is 0. The median's weights are Maritz and Jarrett's (1978): exact for an odd number.
double look_spread(std::span<const double> samples, Statistic statistic, bool less_is_better);

}  // namespace shakedown::judge
