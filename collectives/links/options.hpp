// The options of bin/link_matrix.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "common/judge/court.hpp"
#include "common/placement.hpp"

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
  std::string pairs = "auto";  // or all, or rounds
  std::string matrix = "auto";
  judge::JudgeOptions judge;
  double min_bandwidth_gbs = 0;
  double max_latency_us = 0;
  std::string record;
  BackendOptions backend;
  // for tests
  int pretend_nodes = 0;
};

void declare_options(OptionSet& options, LinkOptions& values);

/// Rounds of nodes' visits that `--pairs` means; 0: each pair of ranks is measured. On one node 0.
/// Throws UsageError that names the option.
int sampled_rounds(const std::string& pairs, const NodeMap& nodes);

/// The messages sent.
struct MessageSettings {
  std::size_t words = 0;  // of 8 bytes, in a message whose bandwidth is measured
  int iterations = 0;
  int warmup = 0;
  int latency_iterations = 0;
};

/// Throws UsageError naming the option.
MessageSettings message_settings(const LinkOptions& options, BackendKind kind, int ranks);

}  // namespace shakedown::collectives
