// A series of the links, as compared and shown: one figure of one kind of link, measured one way.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/links.hpp"

namespace shakedown::collectives {

struct Metric {
  const char* name;
  const char* unit;
  bool bidirectional;  // of which links
  bool symmetric;      // one value for both directions
  bool higher_is_better;
  double Link::*shown;
  double Link::*time_us;  // what is compared
};

struct Series {
  const Metric* metric;
  bool alone;  // no other pair was busy
};

/// "latency us, alone".
std::string name_of(const Series& series);

/// Every metric, concurrent and, where `alone`, alone too.
std::vector<Series> all_series(bool alone);

/// The links of a series; of a symmetric figure each pair once.
std::vector<Link> links_of(const Series& series, const std::vector<Link>& links);

}  // namespace shakedown::collectives
