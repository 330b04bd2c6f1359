#include "common/judge/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/nvml.hpp"
#include "common/statistics.hpp"

namespace shakedown::judge {
namespace {

/// The distribution function of Beta(a, a): its continued fraction, by Lentz's method.
double symmetric_beta(double a, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > 0.5) return 1 - symmetric_beta(a, 1 - x);
  constexpr double kTiny = 1e-300;
  double c = 1, d = 1 / std::max(1 - 2 * a * x / (a + 1), kTiny), fraction = d;
  for (int m = 1; m < 10000; ++m) {
    for (const double term : {m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      if (std::abs(c) < kTiny) c = kTiny;
      fraction *= c * d;
    }
    if (std::abs(c * d - 1) < 1e-14) break;
  }
  const double log_front = std::lgamma(2 * a) - 2 * std::lgamma(a) + a * std::log(x * (1 - x));
  return std::exp(log_front) * fraction / a;
}

bool usable(std::span<const double> samples) {
  return !samples.empty() &&
         std::all_of(samples.begin(), samples.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

double statistic_of(std::span<const double> samples, Statistic statistic, bool less_is_better) {
  if (!usable(samples)) return kUnknown;
  switch (statistic) {
    case Statistic::median: return median_of(samples);
    case Statistic::best:
      return less_is_better ? *std::min_element(samples.begin(), samples.end())
                            : *std::max_element(samples.begin(), samples.end());
    case Statistic::last: return samples.back();
  }
  return kUnknown;
}

double look_spread(std::span<const double> samples, Statistic statistic, bool less_is_better) {
  const double value = statistic_of(samples, statistic, less_is_better);
  if (!std::isfinite(value) || value == 0) return kUnknown;
  if (statistic == Statistic::last) return 0;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  if (statistic == Statistic::best && !less_is_better) std::reverse(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  // That the statistic of a resample is one of the first i of them.
  const auto within = [&](double i) {
    return statistic == Statistic::median ? symmetric_beta((n + 1) / 2, i / n)
                                          : 1 - std::pow((n - i) / n, n);
  };
  double squares = 0, before = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const double up_to = within(static_cast<double>(i + 1));
    const double change = sorted[i] / value - 1;
    squares += (up_to - before) * change * change;
    before = up_to;
  }
  return std::sqrt(squares);
}

}  // namespace shakedown::judge
