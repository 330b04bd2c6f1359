// The options of bin/node_check.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "launch/node/health/facts/node_report.hpp"

namespace shakedown {
class OptionSet;
}

namespace shakedown::node {

struct CheckOptions {
  int expect_gpus = -1;  // below 0: not given
  bool strict = false;
  bool passive = false;
  double deadline_s = 20;
  std::string record, fault;
  ReportSource source;
  BackendOptions backend;
};
void declare_options(OptionSet& set, CheckOptions& options);

}  // namespace shakedown::node
