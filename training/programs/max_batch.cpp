#include "training/programs/max_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/nvml.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/step/memory_budget.hpp"

namespace shakedown::training {
namespace {

// A host's memory is not for this program alone, and one that uses too much is killed without an
// error.
constexpr double kShareOfHost = 0.8;
constexpr int kMostOnHost = 4096;    // images per rank: a step takes long enough
constexpr int kMostOnGpu = 1 << 20;  // beyond any GPU

int find_largest(int limit, const std::function<EngineSettings(int batch)>& settings_of,
                 Backend& backend, const MpiSession& session) {
  const bool gpu = backend.kind == BackendKind::gpu;
  const int bound = limit > 0 ? limit : gpu ? kMostOnGpu : kMostOnHost;
  Engine engine(settings_of(std::min(8, bound)), backend);
  const int sharing = ranks_on_device(backend, session);
  const int largest = largest_batch(engine, sharing, bound, gpu ? 1 : kShareOfHost);
  if (largest == 0)
    throw UsageError(
        fmt::format("--max-batch: not even one image fits into {} of free memory",
                    readable_bytes(static_cast<double>(engine.device().memory().free_bytes))));
  std::string text = fmt::format("largest batch by the plan: {} per rank", largest);
  if (largest == bound) text += ", the limit: no larger one was tried (--max-batch-limit)";
  if (!gpu)
    text += fmt::format("; {} rank{} of this host may use {:.0f} % of its free memory", sharing,
                        sharing == 1 ? "" : "s", 100 * kShareOfHost);
  say(session, wrapped(text, 10));
  return largest;
}

/// The highest share of a device's memory among the ranks that are known; or kUnknown.
double highest_share(const std::vector<double>& bytes, const LargestBatch& found) {
  double highest = kUnknown;
  for (std::size_t r = 0; r < bytes.size(); ++r)
    highest = std::fmax(highest, bytes[r] / found.device_memory_bytes[r]);
  return highest;
}

}  // namespace

ExitCode stepping_down(int batch, bool alone, const std::function<ExitCode(int batch)>& attempt,
                       const std::function<void(const std::string&)>& remark) {
  while (batch > 0) {
    const int smaller = batch - std::max(1, batch / 32);
    const auto step_down = [&](const OutOfMemory& error) {
      remark(fmt::format("--max-batch: {} per rank fit by the plan only ({}); now {}", batch,
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

ExitCode at_largest_batch(int limit, const std::function<EngineSettings(int batch)>& settings_of,
                          Backend& backend, const MpiSession& session,
                          const std::function<ExitCode(int batch)>& run) {
  return stepping_down(find_largest(limit, settings_of, backend, session),
                       session.world_size() == 1, run,
                       [&](const std::string& text) { say(session, wrapped(text, 10)); });
}

LargestBatch largest_batch_of(const Engine& engine, const MpiSession& session) {
  return {engine.settings().network.batch_size,
          session.all_gather(static_cast<double>(engine.device().memory().total_bytes))};
}

std::string summary_of(const LargestBatch& found, const Throughput& measured) {
  std::string text =
      fmt::format("{} per rank: {:.1f} % of a device's {} of memory planned and allocated",
                  found.batch_size, 100 * highest_share(measured.peak_memory_bytes, found),
                  readable_bytes(found.device_memory_bytes.front()));
  if (const double share = highest_share(measured.process_memory_bytes, found);
      std::isfinite(share))
    text += fmt::format(", {:.1f} % in use by the process", 100 * share);
  return labelled("max batch", text);
}

}  // namespace shakedown::training
