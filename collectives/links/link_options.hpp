// The options of bin/link_matrix.
#pragma once

#include <string>

#include "collectives/links/outliers.hpp"
#include "common/backend.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::collectives {

struct LinkOptions {
  std::string bytes;  // by backend
  int iterations = 10;
  int warmup = 2;
  int latency_iterations = 100;
  bool alone = true;
  std::string matrix = "auto";
  OutlierRule outlier;
  bool fail_on_outlier = false;
  double min_bandwidth_gbs = 0;
  double max_latency_us = 0;
  std::string record;
  BackendOptions backend;
  // for tests
  int inject_fault = -1;
  std::string inject_delay;
  int pretend_nodes = 0;
};

void declare_options(OptionSet& options, LinkOptions& values);

/// What is sent, and what is done to it on purpose.
struct MessageSettings {
  std::size_t words = 0;  // of 8 bytes, in a message whose bandwidth is measured
  int iterations = 0;
  int warmup = 0;
  int latency_iterations = 0;
  bool inject_fault = false;  // on this rank
  int inject_delay_us = 0;    // on this rank
};

/// Of one rank. Throws UsageError naming the option.
MessageSettings message_settings(const LinkOptions& options, BackendKind kind, int rank, int ranks);

}  // namespace shakedown::collectives
