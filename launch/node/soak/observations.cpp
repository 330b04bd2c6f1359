#include "launch/node/soak/observations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/statistics.hpp"

namespace shakedown::node {
namespace {

/// At most kMost samples, evenly spaced: a soak may last for days.
std::vector<double> thinned(const std::vector<double>& samples) {
  constexpr std::size_t kMost = 60;
  if (samples.size() <= kMost) return samples;
  std::vector<double> kept;
  for (std::size_t i = 0; i < kMost; ++i) kept.push_back(samples[i * samples.size() / kMost]);
  return kept;
}

/// In the windows of the type's steady products: the median power, the highest temperature, every
/// throttle reason.
GpuWindow seen_of(const std::vector<Window>& windows, std::size_t rank, ProductType type) {
  std::vector<double> power_w;
  GpuWindow seen;
  for (const Window& window : windows) {
    if (window.steady_products != type) continue;
    const RankWindow& of_rank = window.ranks[rank];
    if (std::isfinite(of_rank.power_w)) power_w.push_back(of_rank.power_w);
    seen.temperature_c = std::fmax(seen.temperature_c, of_rank.temperature_c);  // or the known one
    if (of_rank.throttle_known)
      seen.throttle_reasons = seen.throttle_reasons.value_or(0) | of_rank.throttle_reasons;
  }
  if (!power_w.empty()) seen.power_w = median_of(power_w);
  return seen;
}

}  // namespace

std::vector<Series> series_of(const std::vector<SoakedProduct>& products,
                              const std::vector<Window>& windows,
                              const std::vector<Incident>& incidents, int rank, BackendKind kind) {
  std::vector<Series> all;
  for (const auto& [spec, algorithm, rates] : products) {
    const std::string load = fmt::format("product {}", name_of(spec.type));
    Series common;
    common.conditions = {{"shape", fmt::format("{}x{}x{}", spec.m, spec.n, spec.k)},
                         {"algorithm", without_library(algorithm)},
                         {"data", "random"},
                         {"manner", "checked"}};
    common.window = seen_of(windows, static_cast<std::size_t>(rank), spec.type);
    if (!rates.clock_mhz.empty()) common.clock_mhz = median_of(rates.clock_mhz);
    for (const Incident& incident : incidents)
      if ((incident.rank == rank || incident.mismatch.of_all) && incident.mismatch.load == load)
        common.wrong = incident.mismatch.cause;
    for (const Metric& metric : product_metrics(spec.type, kind)) {
      Series one = common;
      one.metric = metric;
      one.samples = thinned(metric.unit == "MHz"       ? rates.clock_mhz
                            : metric.unit == "TFLOP/s" ? rates.tflops
                                                       : rates.flop_per_cycle_sm);
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace shakedown::node
