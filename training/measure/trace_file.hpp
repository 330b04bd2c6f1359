// Traced steps as a timeline to look at: Chrome's trace format, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <string>
#include <vector>

#include "training/measure/breakdown.hpp"

namespace shakedown::training {

struct TracedRun {
  std::string label;  // "ddp on 4 ranks"
  std::string model;  // as --model
  Trace trace;
};

/// One process a run and rank, runs side by side from the same zero; in each, what its compute
/// stream did, its exchanges, and when the host enqueued these. Ranks run on these hosts. Throws
/// InconclusiveError when the file cannot be written.
void write_trace(const std::string& path, const std::vector<TracedRun>& runs,
                 const std::vector<std::string>& hosts);

}  // namespace shakedown::training
