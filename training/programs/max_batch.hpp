// bin/train --max-batch: the run at the largest batch that fits into the device's memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/error.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

/// Finds the largest batch per rank that fits on every rank by the plan of settings_of(batch), up
/// to `limit` (0: the backend's), prints it, and hands it to `run`. Where that lacks memory all the
/// same, a smaller one follows. Throws UsageError where nothing fits. Collective.
ExitCode at_largest_batch(int limit, const std::function<EngineSettings(int batch)>& settings_of,
                          Backend& backend, const MpiSession& session,
                          const std::function<ExitCode(int batch)>& run);

/// Calls attempt(batch) with the largest batch, and as long as it throws BatchTooLarge (or, where
/// one rank runs `alone`, OutOfMemory) calls `remark` and continues with one smaller by a 32nd.
/// Throws UsageError after a batch of one.
ExitCode stepping_down(int batch, bool alone, const std::function<ExitCode(int batch)>& attempt,
                       const std::function<void(const std::string&)>& remark);

/// The batch found.
struct LargestBatch {
  int batch_size = 0;
  std::vector<double> device_memory_bytes;  // per rank
};
LargestBatch largest_batch_of(const Engine& engine, const MpiSession& session);
/// As a line for people.
std::string summary_of(const LargestBatch& found, const Throughput& measured);

}  // namespace shakedown::training
