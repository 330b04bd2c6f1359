#include "common/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/error.hpp"
#include "common/random.hpp"

namespace shakedown {
namespace {

std::vector<double> sorted_copy(std::span<const double> samples) {
  ENSURE(!samples.empty(), "statistics of an empty sample");
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double quantile(std::span<const double> sorted, double p) {
  ENSURE(!sorted.empty(), "quantile of an empty sample");
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median_of(std::span<const double> samples) { return quantile(sorted_copy(samples), 0.5); }

Summary summarize(std::span<const double> samples) {
  const std::vector<double> sorted = sorted_copy(samples);
  const auto n = static_cast<double>(sorted.size());
  Summary s;
  s.count = sorted.size();
  s.min = sorted.front();
  s.max = sorted.back();
  s.median = quantile(sorted, 0.5);
  s.p95 = quantile(sorted, 0.95);
  s.p99 = quantile(sorted, 0.99);
  s.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / n;

  double squares = 0;
  std::vector<double> deviations;
  for (double x : sorted) {
    squares += (x - s.mean) * (x - s.mean);
    deviations.push_back(std::abs(x - s.median));
  }
  s.mad = median_of(deviations);
  if (s.count > 1 && s.mean != 0) s.cv = std::sqrt(squares / (n - 1)) / std::abs(s.mean);
  return s;
}

Interval bootstrap_median(std::span<const double> samples, double confidence, int resamples) {
  ENSURE(!samples.empty(), "bootstrap of an empty sample");
  Random random(20261121);
  std::vector<double> medians;
  std::vector<double> drawn(samples.size());
  for (int i = 0; i < resamples; ++i) {
    for (double& x : drawn) x = samples[random.below(samples.size())];
    std::sort(drawn.begin(), drawn.end());
    medians.push_back(quantile(drawn, 0.5));
  }
  std::sort(medians.begin(), medians.end());
  const double tail = (1 - confidence) / 2;
  return {quantile(medians, tail), quantile(medians, 1 - tail)};
}

}  // namespace shakedown
