// The options of bin/gpu_monitor.
#pragma once

#include <string>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::node {

struct MonitorOptions {
  double interval_s = 1;
  double seconds = 0;  // 0: no limit
  int count = 0;       // 0: no limit
  double call_deadline_s = 5;
  double timeout_s = 300;
  std::string save_readings;
  std::string record;
  // for tests
  std::string fault;
  int pretend_nodes = 0;
};

void declare_options(OptionSet& options, MonitorOptions& values);

}  // namespace shakedown::node
