#include "launch/node/compute/judge.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "common/nvml.hpp"
#include "common/statistics.hpp"
#include "common/throttle_reasons.hpp"

namespace shakedown::node {
namespace {

/// What a round's rates are compared with.
struct Centre {
  double median = 0;
  double deviation = 0;
};

Centre centre_of(const std::vector<double>& rates, const PeerRule& rule) {
  std::vector<double> known;
  for (const double rate : rates)
    if (std::isfinite(rate) && rate > 0) known.push_back(rate);
  if (known.empty()) return {};
  const Summary summary = summarize(known);
  return {summary.median, std::max(1.4826 * summary.mad, rule.least_deviation * summary.median)};
}

/// `centres`: of each round.
std::vector<Slow> compare(const Rates& rates, const std::vector<Centre>& centres,
                          const Limits& limits, const PeerRule& rule) {
  std::vector<Slow> found;
  for (std::size_t gpu = 0; gpu < rates.size(); ++gpu) {
    std::vector<double> ratios;
    std::vector<double> zs;
    std::size_t noticed = 0;
    std::size_t failed = 0;
    for (std::size_t round = 0; round < rates[gpu].size(); ++round) {
      const Centre& centre = centres[round];
      const double rate = rates[gpu][round];
      const bool known = std::isfinite(rate) && rate > 0 && centre.median > 0;
      ratios.push_back(known ? rate / centre.median : 0);
      zs.push_back(known ? std::fabs(rate - centre.median) / centre.deviation : INFINITY);
      if (zs.back() <= rule.z) continue;
      if (ratios.back() < limits.notice) ++noticed;
      if (ratios.back() < limits.fail) ++failed;
    }
    const std::size_t rounds = ratios.size();
    const double needed = rule.share * static_cast<double>(rounds);
    if (rounds == 0 || static_cast<double>(noticed) < needed) continue;
    const bool fails = static_cast<double>(failed) >= needed;
    found.push_back(
        {gpu, fails, median_of(ratios), median_of(zs), fails ? failed : noticed, rounds});
  }
  return found;
}

std::vector<double> of_round(const Rates& rates, std::size_t round) {
  std::vector<double> all;
  for (const std::vector<double>& of_gpu : rates) all.push_back(of_gpu[round]);
  return all;
}

/// How many rates are at least `share` of the highest among them.
std::size_t largest_group(std::vector<double> rates, double share) {
  std::erase_if(rates, [](double rate) { return !(std::isfinite(rate) && rate > 0); });
  std::sort(rates.begin(), rates.end());
  std::size_t largest = 0;
  for (std::size_t high = 0, low = 0; high < rates.size(); ++high) {
    while (rates[low] < share * rates[high]) ++low;
    largest = std::max(largest, high - low + 1);
  }
  return largest;
}

std::size_t fewest_rounds(const Rates& rates) {
  std::size_t rounds = rates.empty() ? 0 : rates.front().size();
  for (const std::vector<double>& of_gpu : rates) rounds = std::min(rounds, of_gpu.size());
  return rounds;
}

}  // namespace

bool comparable(const Rates& rates, const PeerRule& rule) {
  return rates.size() >= rule.peers && fewest_rounds(rates) >= rule.rounds;
}

bool divided(const Rates& rates, const Limits& limits, const PeerRule& rule) {
  const std::size_t rounds = fewest_rounds(rates);
  std::size_t agreed = 0;
  for (std::size_t round = 0; round < rounds; ++round)
    if (2 * largest_group(of_round(rates, round), limits.notice) > rates.size()) ++agreed;
  return static_cast<double>(agreed) < rule.share * static_cast<double>(rounds);
}

std::string division_of(const std::string& name, const Rates& rates, const Limits& limits,
                        const std::string& unit) {
  std::vector<double> medians;
  for (const std::vector<double>& of_gpu : rates) medians.push_back(median_of(of_gpu));
  std::sort(medians.begin(), medians.end());
  return fmt::format("{}: no majority of {} devices agrees within {:.0f} %: {:.4g} {}", name,
                     rates.size(), 100 * (1 - limits.notice), fmt::join(medians, ", "), unit);
}

std::vector<Slow> slow_among_peers(const Rates& rates, const Limits& limits, const PeerRule& rule) {
  std::vector<Centre> centres;
  for (std::size_t round = 0; round < fewest_rounds(rates); ++round)
    centres.push_back(centre_of(of_round(rates, round), rule));
  return compare(rates, centres, limits, rule);
}

std::vector<Slow> slow_by_reference(const Rates& rates, const std::vector<double>& reference,
                                    const Limits& limits, const PeerRule& rule) {
  std::size_t rounds = 0;
  for (const std::vector<double>& of_gpu : rates) rounds = std::max(rounds, of_gpu.size());
  return compare(rates, std::vector<Centre>(rounds, centre_of(reference, rule)), limits, rule);
}

std::vector<Slow> confirmed(const std::vector<Slow>& first, const std::vector<Slow>& again) {
  std::vector<Slow> both;
  for (const Slow& slow : first) {
    const auto same = std::find_if(again.begin(), again.end(), [&](const Slow& other) {
      return other.gpu == slow.gpu && other.fails;
    });
    if (slow.fails && same != again.end()) both.push_back(slow);
  }
  return both;
}

Explanation explain(const Slow& slow, const Limits& limits, const Circumstances& seen) {
  const double clock_ratio = seen.clock_mhz / seen.usual_clock_mhz;
  const std::string rounds =
      fmt::format("{:.1f} % slower, z = {:.0f}, in {} of {} rounds", 100 * (1 - slow.ratio), slow.z,
                  slow.slow_rounds, slow.rounds);
  if (!std::isfinite(clock_ratio))
    return {rounds + "; the clock is unknown", Class::hardware,
            "run again; then compare the clocks"};
  std::string clocks =
      fmt::format("{:.0f} MHz, usual {:.0f} MHz", seen.clock_mhz, seen.usual_clock_mhz);
  if (std::isfinite(seen.temperature_c + seen.usual_temperature_c))
    clocks +=
        fmt::format("; {:.0f} C, usual {:.0f} C", seen.temperature_c, seen.usual_temperature_c);
  if (slow.ratio / clock_ratio < limits.fail)
    return {fmt::format("{}, at a normal clock ({})", rounds, clocks), Class::hardware,
            "run again on another day or in another slot; if it repeats, RMA"};

  const std::uint64_t reasons = seen.throttle_reasons.value_or(0);
  const std::string cause = fmt::format("{}, by its clock ({}; throttle reasons: {})", rounds,
                                        clocks, text_of_throttle_reasons(seen.throttle_reasons));
  if (!seen.throttle_reasons)
    return {cause, Class::environment, "run again where the driver reports throttle reasons"};
  if ((reasons & throttle::kHeat) != 0)
    return {cause, Class::environment, "inspect cooling: airflow, heat sink, inlet temperature"};
  if ((reasons & throttle::kHardware) != 0)
    return {cause, Class::environment, "inspect the power supply and its cables, then cooling"};
  if ((reasons & throttle::kPowerCap) != 0)
    return {cause, Class::environment,
            "compare the power limits (nvidia-smi -q -d POWER), then cooling: a hotter chip needs "
            "more power for its clock"};
  return {cause, Class::config, "compare the clock settings: nvidia-smi -q -d CLOCK"};
}

}  // namespace shakedown::node
