// Which links are slower than others of their kind, by median and MAD: pure functions of the times.
#pragma once

#include <span>
#include <vector>

namespace shakedown::collectives {

/// A time longer than the median by more than max(mad * 1.4826 * MAD, percent of the median) is an
/// outlier. 1.4826 MAD is a normal sample's standard deviation; the percentage keeps a sample of
/// little spread from naming irrelevant differences. Times are compared rather than bandwidths:
/// bandwidths cannot fall below zero, so where links vary none would be slow enough.
struct OutlierRule {
  double mad = 5;
  double percent = 10;
};

/// In the unit of the values.
struct OutlierBar {
  double median = 0;
  double mad = 0;
  double width = 0;  // how far from the median an outlier is
  double limit() const { return median + width; }
};

/// Throws InternalError when there are no values.
OutlierBar outlier_bar(std::span<const double> values, const OutlierRule& rule);

struct LinkTime {
  int from = 0;
  int to = 0;
  double time = 0;
};

struct SlowRank {
  int rank = 0;
  int slow_links = 0;
  int links = 0;
  double median = 0;  // of its links' times
};

struct LinkOutliers {
  bool compared = false;  // fewer than three links cannot be
  OutlierBar bar;
  std::vector<SlowRank> ranks;  // at least 3/4 of whose two or more links are outliers
  std::vector<LinkTime> links;  // the other outliers
};

/// Finds outliers among links that should be alike. One slow rank of four slows half of all links,
/// which spoils their median. So where four ranks or more have links, ranks are compared first, and
/// the bar is computed from the links between ranks that are not slow themselves.
LinkOutliers find_outliers(std::span<const LinkTime> links, const OutlierRule& rule);

}  // namespace shakedown::collectives
