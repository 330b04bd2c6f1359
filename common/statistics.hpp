// Summary statistics of repeated measurements.
#pragma once

#include <span>
#include <vector>

namespace shakedown {

/// Summary of a non-empty sample, in the sample's unit except for cv (a ratio).
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

/// Means of a series resampled in blocks of consecutive samples, which keeps the correlation of
/// samples near one another: the moving-block bootstrap (Kuensch 1989), its blocks wrapped round at
/// the end so that every sample is as likely (Politis & Romano 1992). Blocks have ceil(sqrt(n))
/// samples. Series of the same length are resampled alike, so that those of several ranks can be
/// combined resample by resample. Empty for fewer than five blocks, i.e. fewer than 25 samples:
/// they are too few for an interval.
std::vector<double> block_bootstrap_means(std::span<const double> series, int resamples = 2000);

/// The confidence interval that such estimates, of series of n samples, give: percentiles, farther
/// out the fewer the blocks are, as Student's t is from the normal distribution (Hesterberg 2015,
/// "expanded percentile interval").
Interval block_bootstrap_interval(std::vector<double> estimates, std::size_t n,
                                  double confidence = 0.95);

/// Percentile-bootstrap confidence interval of the median (Efron 1979), with its own fixed seed,
/// so that the same samples give the same interval. For independent samples.
Interval bootstrap_median(std::span<const double> samples, double confidence = 0.95,
                          int resamples = 2000);

}  // namespace shakedown
