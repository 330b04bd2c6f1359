#include "collectives/links/link_series.hpp"

#include <fmt/format.h>

namespace shakedown::collectives {
namespace {

constexpr Metric kMetrics[] = {
    {"unidirectional", "GB/s", false, false, true, &Link::bandwidth_gbs, &Link::time_us_p50},
    {"bidirectional", "GB/s", true, true, true, &Link::bandwidth_gbs, &Link::time_us_p50},
    {"latency", "us", false, true, false, &Link::latency_us, &Link::latency_us},
};

}  // namespace

std::string name_of(const Series& series) {
  return fmt::format("{} {}, {}", series.metric->name, series.metric->unit,
                     concurrency_of(series.alone));
}

std::vector<Series> all_series(bool alone) {
  std::vector<Series> all;
  for (const Metric& metric : kMetrics) {
    all.push_back({&metric, false});
    if (alone) all.push_back({&metric, true});
  }
  return all;
}

std::vector<Link> links_of(const Series& series, const std::vector<Link>& links) {
  std::vector<Link> found;
  for (const Link& link : links)
    if (link.alone == series.alone && link.bidirectional == series.metric->bidirectional &&
        (!series.metric->symmetric || link.from < link.to))
      found.push_back(link);
  return found;
}

}  // namespace shakedown::collectives
