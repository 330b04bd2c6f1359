// ECC errors, remapped rows, and what the driver itself advises.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/statistics.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kRma = "RMA";
// Above this a GPU is usually replaced: ml-engineering's RMA line.
constexpr std::uint64_t kAggregateSramErrors = 4;
// Corrected errors are normal: many are those above both.
constexpr double kCorrectedErrors = 1000;
constexpr double kCorrectedRatio = 100;  // of the peers' median
constexpr double kCorrectedAlone = 2e7;  // where there are no peers: AzNHC's limit

struct Recovery {
  const char* name;  // as the reading has it
  const char* action;
};
constexpr std::array<Recovery, 5> kRecoveries{
    {{"reset", "reset GPU"},
     {"recover_imex_domain", "restart nvidia-imex on all nodes of the domain"},
     {"reboot", "reboot"},
     {"drain_p2p", "drain the node and stop peer-to-peer work on it, then reset GPU"},
     {"drain_and_reset", "drain the node, then reset GPU"}}};

Judgement judge_recovery(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.recovery_action) return not_known("the driver does not report a recovery action");
  return judge_recovery_action(*gpu.recovery_action);
}

Judgement judge_volatile(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.volatile_.uncorrected) return not_known("uncorrected ECC errors are not reported");
  if (*gpu.volatile_.uncorrected == 0)
    return passed("no uncorrected ECC error since the driver was loaded");
  const std::string cause = fmt::format("{} uncorrected ECC errors since the driver was loaded",
                                        *gpu.volatile_.uncorrected);
  // One that was recovered is history (gpud#108); those that grow are judged after the work.
  if (gpu.remap_pending == false && gpu.remap_failure == false && gpu.recovery_action == "none")
    return warning(Class::hardware, cause + ", recovered", "run again; RMA if they grow");
  return failure(Class::hardware, cause, "reset GPU; RMA if they come back");
}

Judgement judge_corrected(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.volatile_.corrected) return not_known("corrected ECC errors are not reported");
  const auto mine = static_cast<double>(*gpu.volatile_.corrected);
  const auto peers = context.known<double>([](const GpuReading& peer) -> Known<double> {
    if (!peer.volatile_.corrected) return std::nullopt;
    return static_cast<double>(*peer.volatile_.corrected);
  });
  const double limit = peers.size() < 3
                           ? kCorrectedAlone
                           : std::max(kCorrectedErrors, kCorrectedRatio * median_of(peers));
  if (mine <= limit) return passed("corrected ECC errors are few");
  return warning(
      Class::hardware,
      fmt::format("{:.0f} corrected ECC errors since the driver was loaded, limit {:.0f}", mine,
                  limit),
      "run again after a day; reset GPU if they grow");
}

Judgement judge_aggregate(const GpuReading& gpu, const GpuContext&) {
  if (gpu.sram_threshold_exceeded == true)
    return failure(Class::hardware, "uncorrected SRAM errors exceed the driver's threshold", kRma);
  if (!gpu.aggregate_sram_uncorrected)
    return not_known("lifetime uncorrected SRAM errors are not reported");
  const std::string cause =
      fmt::format("{} uncorrected SRAM errors in its life", *gpu.aggregate_sram_uncorrected);
  if (*gpu.aggregate_sram_uncorrected > kAggregateSramErrors)
    return warning(Class::hardware, cause, "RMA candidate: more than 4 is the usual line");
  if (!gpu.sram_threshold_exceeded)
    return not_known(cause + "; whether the driver's threshold is exceeded is not reported");
  return passed("uncorrected SRAM errors: at most 4, below the driver's threshold");
}

Judgement judge_remap(const GpuReading& gpu, const GpuContext&) {
  if (gpu.remap_failure == true)
    return failure(Class::hardware, "a row of memory could not be remapped", kRma);
  if (gpu.remap_pending == true)
    return failure(Class::hardware, "remapped rows of memory wait for a reset", "reset GPU");
  if (!gpu.remap_failure || !gpu.remap_pending) return not_known("remapped rows are not reported");
  const int rows = gpu.remapped_corrected.value_or(0) + gpu.remapped_uncorrected.value_or(0);
  return passed(rows == 0 ? "no row of memory is remapped"
                          : fmt::format("{} rows of memory are remapped, none pending", rows));
}

}  // namespace

Judgement judge_recovery_action(const std::string& name) {
  if (name == "none") return passed("the driver advises no recovery");
  const std::string cause = fmt::format("the driver advises: {}", name);
  for (const Recovery& recovery : kRecoveries)
    if (name == recovery.name) return failure(Class::hardware, cause, recovery.action);
  return failure(Class::hardware, cause, "drain the node; see the documentation of this driver");
}

std::vector<GpuRule> error_rules() {
  return {{"recovery-action", "what the driver advises to do", judge_recovery},
          {"ecc-volatile", "uncorrected ECC errors since the driver was loaded", judge_volatile},
          {"ecc-corrected", "corrected ECC errors, next to those of the peers", judge_corrected},
          {"ecc-aggregate", "uncorrected SRAM errors of the GPU's life", judge_aggregate},
          {"row-remap", "remapped rows: pending, failed", judge_remap}};
}

}  // namespace shakedown::node
