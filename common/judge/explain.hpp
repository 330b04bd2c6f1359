// Class and action of a slow rate: what explains it (clock, power, heat) comes before the device.
#pragma once

#include <optional>
#include <string>

#include "common/judge/observation.hpp"
#include "common/judge/series.hpp"
#include "common/judge/witnesses.hpp"

namespace shakedown::judge {

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
