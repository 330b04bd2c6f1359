#include "common/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/ensure.hpp"
#include "common/hash.hpp"

namespace shakedown {
namespace {

std::vector<double> sorted_copy(std::span<const double> samples) {
  ENSURE(!samples.empty(), "statistics of an empty sample");
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

std::size_t block_length(std::size_t n) {
  return static_cast<std::size_t>(std::ceil(std::sqrt(std::max(1.0, static_cast<double>(n)))));
}

/// The quantile of the normal distribution that leaves `tail` above it, by bisection.
double normal_quantile(double tail) {
  double low = 0;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > tail ? low : high) = middle;
  }
  return low;
}

/// Student's t for the normal quantile z: the expansion in 1 / freedom of Abramowitz & Stegun
/// 26.7.5, within 1 % from four degrees of freedom on.
double student_t(double z, double freedom) {
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  return z + (z3 + z) / (4 * freedom) + (5 * z5 + 16 * z3 + 3 * z) / (96 * freedom * freedom) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * freedom * freedom * freedom);
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

std::vector<double> block_bootstrap_means(std::span<const double> series, int resamples) {
  constexpr std::size_t kLeastBlocks = 5;
  const std::size_t n = series.size();
  const std::size_t length = block_length(n);
  if (n < kLeastBlocks * length) return {};
  std::vector<double> sums{0};  // of the first i samples of the series and its repetition
  for (std::size_t i = 0; i < 2 * n; ++i) sums.push_back(sums.back() + series[i % n]);
  Random random(20261122);
  std::vector<double> means;
  for (int i = 0; i < resamples; ++i) {
    double sum = 0;
    for (std::size_t filled = 0; filled < n; filled += length) {
      const std::size_t begin = random.below(n);
      sum += sums[begin + std::min(length, n - filled)] - sums[begin];
    }
    means.push_back(sum / static_cast<double>(n));
  }
  return means;
}

Interval block_bootstrap_interval(std::vector<double> estimates, std::size_t n, double confidence) {
  const double blocks = static_cast<double>(n) / static_cast<double>(block_length(n));
  const double t = student_t(normal_quantile((1 - confidence) / 2), blocks - 1);
  const double tail = std::erfc(t * std::sqrt(blocks / (blocks - 1) / 2)) / 2;
  std::sort(estimates.begin(), estimates.end());
  return {quantile(estimates, tail), quantile(estimates, 1 - tail)};
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
