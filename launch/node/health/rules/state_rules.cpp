// Clocks, power, temperature, and why the clocks are low, at one moment.
#include <fmt/format.h>

#include "common/nvml.hpp"
#include "common/throttle_reasons.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
namespace {

constexpr double kBusy_percent = 10;  // above it a power cap is normal
constexpr double kHot_c = 85;         // where the driver reports no margin
constexpr double kHotMemory_c = 95;
constexpr double kSmallMargin_c = 5;  // to the slowdown
constexpr double kSameLimit_w = 1;

bool is_busy(const GpuReading& gpu, const GpuContext& context) {
  return context.under_load || gpu.utilisation_percent > kBusy_percent;
}

Judgement judge_reasons(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.throttle_reasons) return not_known("throttle reasons are not reported");
  const std::uint64_t bits = *gpu.throttle_reasons;
  const std::string cause =
      fmt::format("clocks are reduced: {}", text_of_throttle_reasons(gpu.throttle_reasons));
  if (const auto slowdown = judge_hardware_slowdown(gpu, context.under_load)) return *slowdown;
  if (bits & throttle::kHeat)
    return warning(Class::environment, cause,
                   "inspect the cooling: fans, air flow, inlet temperature");
  if (bits & throttle::kSyncBoost)
    return warning(Class::config, cause, "reconfigure: take the GPU out of its sync boost group");
  if (bits & throttle::kPowerCap && !is_busy(gpu, context))
    return warning(Class::config, cause + ", though the GPU is idle",
                   "reconfigure the power limit: " + nvidia_smi(gpu) + " -pl DEFAULT");
  return passed("clocks are not reduced");
}

Judgement judge_clocks(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.max_sm_clock_mhz || !gpu.max_memory_clock_mhz)
    return not_known("highest clocks are not reported");
  const auto sm = context.majority(&GpuReading::max_sm_clock_mhz);
  const auto memory = context.majority(&GpuReading::max_memory_clock_mhz);
  const std::string reset = "reconfigure the clocks: " + nvidia_smi(gpu) + " -rgc -rac";
  if ((sm && gpu.max_sm_clock_mhz < *sm) || (memory && gpu.max_memory_clock_mhz < *memory))
    return failure(
        Class::config,
        fmt::format("highest clocks {:.0f} and {:.0f} MHz, lower than those of most peers",
                    *gpu.max_sm_clock_mhz, *gpu.max_memory_clock_mhz),
        reset);
  if (!gpu.throttle_reasons) return not_known("whether the clocks are locked is not reported");
  if (*gpu.throttle_reasons & throttle::kApplicationClocks)
    return warning(Class::config, "the clocks are set by an operator", reset);
  return passed(fmt::format("highest clocks {:.0f} and {:.0f} MHz, not locked",
                            *gpu.max_sm_clock_mhz, *gpu.max_memory_clock_mhz));
}

Judgement judge_power_limit(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.power_limit_w) return not_known("the power limit is not reported");
  if (!gpu.power_limit_default_w) return not_known("the default power limit is not reported");
  const double limit = *gpu.power_limit_w, usual = *gpu.power_limit_default_w;
  const std::string cause = fmt::format("power limit {:.0f} W, default {:.0f} W", limit, usual);
  const auto most = context.majority(&GpuReading::power_limit_w);
  const std::string action =
      fmt::format("reconfigure the power limit: {} -pl {:.0f}", nvidia_smi(gpu), usual);
  if (most && limit < *most - kSameLimit_w)
    return failure(Class::config, fmt::format("{}, most peers {:.0f} W", cause, *most), action);
  if (limit < usual - kSameLimit_w || limit > usual + kSameLimit_w)
    return warning(Class::config, cause, action);
  return passed(fmt::format("power limit {:.0f} W, the default", limit));
}

Judgement judge_temperature(const GpuReading& gpu, const GpuContext&) {
  const std::string action = "inspect the cooling: fans, air flow, inlet temperature";
  if (gpu.temperature_margin_c && *gpu.temperature_margin_c <= kSmallMargin_c)
    return warning(Class::environment,
                   fmt::format("{:.0f} C below the slowdown", *gpu.temperature_margin_c), action);
  if (gpu.memory_temperature_c && *gpu.memory_temperature_c > kHotMemory_c)
    return warning(Class::environment, fmt::format("memory at {:.0f} C", *gpu.memory_temperature_c),
                   action);
  if (!gpu.temperature_c) return not_known("temperature is not reported");
  if (!gpu.temperature_margin_c && *gpu.temperature_c > kHot_c)
    return warning(Class::environment, fmt::format("{:.0f} C", *gpu.temperature_c), action);
  return passed("temperature is normal");
}

}  // namespace

std::optional<Judgement> judge_hardware_slowdown(const GpuReading& gpu, bool lasts) {
  const std::uint64_t bits = gpu.throttle_reasons.value_or(0);
  const auto judge = lasts ? failure : warning;
  const std::string cause =
      fmt::format("clocks are reduced: {}", text_of_throttle_reasons(gpu.throttle_reasons));
  if (bits & throttle::kPowerBrake)
    return judge(Class::environment, cause, "inspect the power supplies of the node");
  if (bits & throttle::kHwSlowdown && !(bits & throttle::kHwThermal))
    return judge(Class::hardware, cause, "inspect power and cooling; reset GPU, RMA if it stays");
  return std::nullopt;
}

std::vector<GpuRule> state_rules() {
  return {{"throttle-reasons", "why the clocks are reduced now", judge_reasons},
          {"clocks", "highest clocks, by the majority of the model; locked clocks", judge_clocks},
          {"power-limit", "power limit next to its default and to the peers'", judge_power_limit},
          {"temperature", "GPU and memory", judge_temperature}};
}

}  // namespace shakedown::node
