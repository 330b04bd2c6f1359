#include "training/programs/max_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/program.hpp"
#include "training/step/engine.hpp"
#include "training/step/memory_budget.hpp"

namespace shakedown::training {
namespace {

// A host's memory is not for this program alone, and one that takes too much is killed, not told.
constexpr double kShareOfHost = 0.8;
constexpr int kMostOnHost = 4096;    // images a rank: a step takes long enough
constexpr int kMostOnGpu = 1 << 20;  // beyond any GPU

int find_largest(const TrainOptions& options, int classes, Backend& backend,
                 const MpiSession& session) {
  const bool gpu = backend.kind == BackendKind::gpu;
  const int bound = options.max_batch_limit > 0 ? options.max_batch_limit
                    : gpu                       ? kMostOnGpu
                                                : kMostOnHost;
  TrainOptions small = options;
  small.batch_size = std::min(8, bound);
  Engine engine(engine_settings(small, backend, classes), backend);
  const int sharing = ranks_on_device(backend, session);
  const int largest = largest_batch(engine, sharing, bound, gpu ? 1 : kShareOfHost);
  if (largest == 0)
    throw UsageError(
        fmt::format("--max-batch: not even one image fits into {} of free memory",
                    readable_bytes(static_cast<double>(engine.device().memory().free_bytes))));
  std::string text = fmt::format("largest batch by the plan: {} a rank", largest);
  if (largest == bound) text += ", the limit: no larger one was tried (--max-batch-limit)";
  if (!gpu)
    text += fmt::format("; {} rank{} of this host may take {:.0f} % of its free memory", sharing,
                        sharing == 1 ? "" : "s", 100 * kShareOfHost);
  say(session, text);
  return largest;
}

/// Of every rank: `key` over the device's memory; the highest.
double highest_share(const Json& step, const char* key) {
  double highest = NAN;
  for (std::size_t r = 0; r < step.at("device_memory_bytes").size(); ++r) {
    const Json& bytes = step.at(key).at(r);
    if (!bytes.is_number()) continue;
    const double share = bytes.get<double>() / step["device_memory_bytes"][r].get<double>();
    if (!(highest >= share)) highest = share;
  }
  return highest;
}

}  // namespace

ExitCode stepping_down(int batch, bool alone, const std::function<ExitCode(int batch)>& attempt,
                       const std::function<void(const std::string&)>& remark) {
  while (batch > 0) {
    const int smaller = batch - std::max(1, batch / 32);
    const auto step_down = [&](const OutOfMemory& error) {
      remark(fmt::format("--max-batch: {} a rank fit by the plan only ({}); now {}", batch,
                         error.what(), smaller));
      batch = smaller;
    };
    try {
      return attempt(batch);
    } catch (const BatchTooLarge& error) {
      step_down(error);
    } catch (const OutOfMemory& error) {
      if (!alone) throw;  // the other ranks do not know
      step_down(error);
    }
  }
  throw UsageError("--max-batch: not even one image fits");
}

ExitCode at_largest_batch(const TrainOptions& options, int classes, Backend& backend,
                          const MpiSession& session,
                          const std::function<ExitCode(const TrainOptions&)>& run) {
  return stepping_down(
      find_largest(options, classes, backend, session), session.world_size() == 1,
      [&](int batch) {
        TrainOptions with_it = options;
        with_it.batch_size = batch;
        return run(with_it);
      },
      [&](const std::string& text) { say(session, text); });
}

Json largest_batch_fields(const Device& device, const MpiSession& session) {
  return {{"max_batch", true},
          {"device_memory_bytes",
           session.all_gather(static_cast<double>(device.memory().total_bytes))}};
}

std::string summary_of_largest_batch(const Json& step, int batch_size) {
  std::string text =
      fmt::format("max batch {} a rank: {:.1f} % of a device's {} of memory planned and allocated",
                  batch_size, 100 * highest_share(step, "peak_memory_bytes"),
                  readable_bytes(step.at("device_memory_bytes").at(0).get<double>()));
  if (const double share = highest_share(step, "process_memory_bytes"); std::isfinite(share))
    text += fmt::format(", {:.1f} % in use by the process", 100 * share);
  return text + "\n";
}

}  // namespace shakedown::training
