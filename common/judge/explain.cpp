#include "common/judge/explain.hpp"

#include <fmt/format.h>

#include <cmath>

#include "common/throttle_reasons.hpp"

namespace shakedown::judge {
namespace {

constexpr double kHotter_c = 5;

Explanation of_clock(const Observation& o, double r, const Testimony& said,
                     const Context& context) {
  const Circumstances& seen = o.seen;
  const std::uint64_t reasons = seen.reasons.value_or(0);
  if (seen.power_limit_w < 0.99 * context.usual_power_limit_w)
    return {fmt::format("its power limit is {:.0f} W, usual {:.0f} W", seen.power_limit_w,
                        context.usual_power_limit_w),
            Class::config, "set the power limit: nvidia-smi -pl"};
  if ((reasons & throttle::kHeat) != 0)
    return {"thermal throttling lowers the clock", Class::environment,
            "inspect cooling: airflow, heat sink, inlet temperature"};
  if ((reasons & throttle::kHardware) != 0)
    return {"the power supply lowers the clock (hw_slowdown or power brake)", Class::environment,
            "inspect the power supply and its cables, then cooling"};
  if ((reasons & throttle::kPowerCap) != 0) {
    const bool hotter = seen.temperature_c > context.usual_temperature_c + kHotter_c;
    return {hotter ? fmt::format(
                         "the power limit lowers the clock at {:.0f} C, usual {:.0f} C: a hotter "
                         "chip needs more power for its clock",
                         seen.temperature_c, context.usual_temperature_c)
                   : "the power limit lowers the clock",
            Class::environment, "inspect cooling, then compare the power with its neighbours'",
            r <= said.floor};
  }
  if (seen.reasons)
    return {"no throttle reason is reported", Class::config,
            "compare the clock settings: nvidia-smi -q -d CLOCK; unlock with nvidia-smi -rgc"};
  return {"throttle reasons are not reported", std::nullopt,
          "run again where the driver reports throttle reasons"};
}

}  // namespace

Explanation explain(const Observation& o, double r, const Testimony& said, const Limit& limit,
                    const Context& context) {
  if (context.all_alike)
    return {"all devices are alike", Class::config,
            "compare driver, libraries, power limit and clock settings with the reference's"};
  if (o.metric.ends_with("/clock_mhz")) return of_clock(o, r, said, context);
  if (o.backend == "cpu")
    return {"", Class::environment, "run again; if it repeats, look for other work on its cores"};
  if (o.metric.ends_with("/flop_per_cycle_sm") && context.memory_slow)
    return {"its memory is slow, too", Class::hardware,
            "compare memory clock and remapped rows with its neighbours'; if they are alike, RMA"};
  if (o.metric.starts_with("host_link/") && o.path_class.starts_with("far"))
    return {"its host memory is on another NUMA node", Class::config,
            "let the rank use cores of its GPU's NUMA node: launch/mpi --bind none"};
  return {"", limit.class_, limit.action};
}

}  // namespace shakedown::judge
