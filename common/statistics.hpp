// Summary statistics of repeated measurements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shakedown {

/// Of a non-empty sample; in the sample's unit but for cv (a ratio).
struct Summary {
  std::size_t count = 0;
  double min = 0;
  double median = 0;
  double mean = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
  double mad = 0;  // median absolute deviation from the median
  double cv = 0;   // sample standard deviation / mean
};

struct Interval {
  double low = 0;
  double high = 0;
};

/// Throws InternalError on an empty sample.
Summary summarize(std::span<const double> samples);

/// The p-quantile (0..1), linearly interpolated between order statistics (Hyndman & Fan 1996,
/// type 7: NumPy's default). `sorted` is ascending and not empty.
double quantile(std::span<const double> sorted, double p);
double median_of(std::span<const double> samples);

/// Percentile-bootstrap confidence interval of the median (Efron 1979), with its own fixed seed,
/// so that the same samples give the same interval.
Interval bootstrap_median(std::span<const double> samples, double confidence = 0.95,
                          int resamples = 2000);

}  // namespace shakedown
