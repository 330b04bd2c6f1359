#include "launch/node/soak/window.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/throttle_reasons.hpp"

namespace shakedown::node {
namespace {

double sum_of(const std::vector<RankWindow>& ranks,
              const std::array<double, kLoadKinds> RankWindow::*field, LoadKind kind) {
  double sum = 0;
  for (const RankWindow& rank : ranks) sum += (rank.*field)[static_cast<std::size_t>(kind)];
  return sum;
}

}  // namespace

double share_of_reasons(const std::vector<std::optional<std::uint64_t>>& samples,
                        std::uint64_t reasons) {
  double known = 0;
  double with = 0;
  for (const auto& sample : samples) {
    if (!sample) continue;
    ++known;
    if ((*sample & reasons) != 0) ++with;
  }
  return known > 0 ? with / known : kUnknown;
}

RankWindow rank_window(const PhaseResult& result, const GpuWindow& health,
                       const HealthDelta& errors) {
  RankWindow window;
  for (std::size_t kind = 0; kind < kLoadKinds; ++kind) {
    const LoadCount& count = result.counts[kind];
    window.checked[kind] = static_cast<double>(count.checked);
    window.wrong[kind] = static_cast<double>(count.wrong);
    window.bytes[kind] = count.bytes;
  }
  const LoadCount& products = result.counts[static_cast<std::size_t>(LoadKind::products)];
  window.flop = products.flop;
  window.product_seconds = products.seconds;
  window.self_compared = static_cast<double>(products.self_compared);
  window.checked_over_unchecked = result.checked_over_unchecked;
  window.seconds = result.seconds;
  window.sm_clock_mhz = health.sm_clock_mhz;
  window.power_w = health.power_w;
  window.temperature_c = health.temperature_c;
  window.energy_j = health.energy_j;
  window.hardware_slowdown_share = share_of_reasons(health.reasons, throttle::kHardware);
  window.thermal_share = share_of_reasons(health.reasons, throttle::kHeat);
  window.power_cap_share = share_of_reasons(health.reasons, throttle::kPowerCap);
  window.throttle_known = health.throttle_reasons.has_value();
  window.throttle_reasons = health.throttle_reasons.value_or(0);
  window.errors = errors;
  return window;
}

double Window::checked(LoadKind kind) const { return sum_of(ranks, &RankWindow::checked, kind); }
double Window::wrong(LoadKind kind) const { return sum_of(ranks, &RankWindow::wrong, kind); }
double Window::bytes(LoadKind kind) const { return sum_of(ranks, &RankWindow::bytes, kind); }

double Window::wrong() const {
  double sum = 0;
  for (const RankWindow& rank : ranks)
    for (const double wrong : rank.wrong) sum += wrong;
  return sum;
}

double Window::seconds() const {
  double longest = 0;
  for (const RankWindow& rank : ranks) longest = std::max(longest, rank.seconds);
  return longest;
}

Json record_of(const Window& window) {
  Json fields{{"window", window.index}, {"phase", window.phase}, {"seconds", window.seconds()}};
  for (const LoadKind kind : all_loads()) {
    const std::string name = name_of(kind);
    if (window.checked(kind) == 0 && window.wrong(kind) == 0) continue;
    fields["checked_" + name] = window.checked(kind);
    fields["wrong_" + name] = window.wrong(kind);
    if (window.bytes(kind) > 0) fields["bytes_" + name] = window.bytes(kind);
  }
  for (const RankWindow& rank : window.ranks) {
    if (rank.flop > 0) fields["tflops"].push_back(rank.flop / rank.product_seconds / 1e12);
    if (std::isfinite(rank.checked_over_unchecked))
      fields["checked_over_unchecked"].push_back(rank.checked_over_unchecked);
    fields["sm_clock_mhz"].push_back(rank.sm_clock_mhz);
    fields["power_w"].push_back(rank.power_w);
    fields["temperature_c"].push_back(rank.temperature_c);
    fields["energy_j"].push_back(rank.energy_j);
    fields["hardware_slowdown_share"].push_back(rank.hardware_slowdown_share);
    fields["thermal_share"].push_back(rank.thermal_share);
    fields["power_cap_share"].push_back(rank.power_cap_share);
    fields["ecc_corrected"].push_back(rank.errors.ecc_corrected);
    fields["ecc_uncorrected"].push_back(rank.errors.ecc_uncorrected);
    fields["pcie_replays"].push_back(rank.errors.pcie_replays);
    fields["nvlink_errors"].push_back(rank.errors.nvlink_errors);
  }
  for (const auto& events : window.kernel_events) {
    std::string codes;
    if (events)
      for (const KernelEvent& event : *events)
        codes += (codes.empty() ? "" : " ") +
                 (event.code == 0 ? std::string("message") : std::to_string(event.code));
    fields["xids"].push_back(events ? Json(codes) : Json());
  }
  return fields;
}

}  // namespace shakedown::node
