// The network, its memory plan and its buckets, for people.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/run.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

/// Prints it, per image and for one rank. Needs nothing allocated.
ExitCode describe(const Engine& engine, const MpiSession& session);

/// "8 ranks on 2 nodes (n1, n2)", of each rank's host.
std::string text_of_ranks(const std::vector<std::string>& hosts);

/// "on 8 ranks on 2 nodes (n1, n2), gpu (mpi), NVIDIA H200".
std::string text_of_machine(const Backend& backend, const std::vector<std::string>& hosts);

/// What runs, on what, with which batch; and why steps are not graphs where they could be.
std::string headline(const Engine& engine, const Backend& backend,
                     const std::vector<std::string>& hosts, const std::string& data);

/// The fusions found fastest, and the remarks of starting from a file; after Engine::allocate().
std::string text_of_start(const Engine& engine);

// bin/train --max-batch: the run at the largest batch that fits into the device's memory.

/// Calls `run` with these options; with --max-batch at the largest batch that fits on every rank by
/// the plan, which it prints. Where that lacks memory all the same, a smaller one follows. Throws
/// UsageError where nothing fits. Collective.
ExitCode at_requested_batch(const TrainOptions& options, int classes, Backend& backend,
                            const MpiSession& session,
                            const std::function<ExitCode(const TrainOptions&)>& run);

/// Calls attempt(batch) with the largest batch, and as long as it throws BatchTooLarge (or, where
/// one rank runs `alone`, OutOfMemory) calls `remark` and continues with one smaller by a 32nd.
/// Throws UsageError after a batch of one.
ExitCode stepping_down(int batch, bool alone, const std::function<ExitCode(int batch)>& attempt,
                       const std::function<void(const std::string&)>& remark);

/// The batch found, for people, of devices with this much memory each.
std::string text_of_largest(int batch, const Throughput& measured,
                            const std::vector<double>& device_memory_bytes);

// bin/train --layers: trains some steps with an event after each call, and prints
// where their time goes.

/// Writes the records and prints what rank 0 measured. Throws UsageError where rank 0 computes
/// nothing, FailError when the loss is not finite any more. Collective.
ExitCode run_layers(const Run& run);

}  // namespace shakedown::training
