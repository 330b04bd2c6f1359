// What one window of a soak did and met, on every rank.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "common/gpu_sampler.hpp"
#include "common/record.hpp"
#include "launch/node/soak/gpu_health.hpp"
#include "launch/node/soak/kernel_watch.hpp"
#include "launch/node/soak/work.hpp"

namespace shakedown::node {

/// One rank's share of a window, exchanged between ranks. Health is kUnknown where there is no
/// NVML.
struct RankWindow {
  std::array<double, kLoadKinds> checked{}, wrong{}, bytes{};  // by LoadKind
  double flop = 0;
  double product_seconds = 0;
  double self_compared = 0;  // products, of those checked: with the same GPU's others alone
  double checked_over_unchecked = kUnknown;
  double seconds = 0;
  double sm_clock_mhz = kUnknown, power_w = kUnknown, temperature_c = kUnknown, energy_j = kUnknown;
  double hardware_slowdown_share = kUnknown;  // of the samples: HW slowdown or power brake
  double thermal_share = kUnknown;            // of the samples: HW or SW thermal slowdown
  double power_cap_share = kUnknown;
  bool throttle_known = false;
  std::uint64_t throttle_reasons = 0;  // of any sample
  HealthDelta errors;
  bool stop = false;           // a signal has come
  bool over = false;           // the time is over, on rank 0
  bool memory_covered = true;  // by every pattern, if it is to be
};

/// Share of the samples with one of the reasons; kUnknown where no sample knows them.
double share_of_reasons(const std::vector<std::optional<std::uint64_t>>& samples,
                        std::uint64_t reasons);

RankWindow rank_window(const PhaseResult& result, const GpuWindow& health,
                       const HealthDelta& errors);

struct Window {
  int index = 0;
  std::string phase;
  std::optional<ProductType> steady_products;  // a rate that GPUs are compared by
  std::vector<RankWindow> ranks;
  // By rank, of its GPU; none: the kernel's messages cannot be read. Empty without GPUs.
  std::vector<std::optional<std::vector<KernelEvent>>> kernel_events = {};

  double checked(LoadKind kind) const;
  double wrong(LoadKind kind) const;
  double bytes(LoadKind kind) const;
  double wrong() const;
  /// Of the slowest rank.
  double seconds() const;
};

/// The fields of a "soak" record.
Json record_of(const Window& window);

}  // namespace shakedown::node
