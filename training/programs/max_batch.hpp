// bin/train --max-batch: the run at the largest batch that fits into the device's memory.
#pragma once

#include <functional>
#include <string>

#include "common/backend.hpp"
#include "common/error.hpp"
#include "common/record.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

/// Finds the largest batch a rank that fits on every rank by the plan, says so, and hands the
/// options with it to `run`. Where that lacks memory all the same, says so and takes a smaller one.
/// Throws UsageError where nothing fits. Every rank calls it.
ExitCode at_largest_batch(const TrainOptions& options, int classes, Backend& backend,
                          const MpiSession& session,
                          const std::function<ExitCode(const TrainOptions&)>& run);

/// Calls attempt(batch) with the largest batch, and as long as it throws BatchTooLarge (or, where
/// one rank runs `alone`, OutOfMemory) tells `remark` and goes on with one smaller by a 32nd.
/// Throws UsageError behind a batch of one.
ExitCode stepping_down(int batch, bool alone, const std::function<ExitCode(int batch)>& attempt,
                       const std::function<void(const std::string&)>& remark);

/// What a "step" record has besides: that its batch was the largest, and the devices' memory.
Json largest_batch_fields(const Device& device, const MpiSession& session);
/// Of a step record with these, for people.
std::string summary_of_largest_batch(const Json& step, int batch_size);

}  // namespace shakedown::training
