// The options of bin/node_check.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown {
class OptionSet;
}

namespace shakedown::node {

struct CheckOptions {
  Expected expected;
  bool strict = false;
  bool passive = false;
  double deadline_s = 5;
  std::string record, fault;
  ReportSource source;
  BackendOptions backend;
};
void declare_options(OptionSet& set, CheckOptions& options);

}  // namespace shakedown::node
