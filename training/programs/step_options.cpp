#include "training/programs/step_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::training {

int batch_size_of(const StepOptions& options, int ranks) {
  if (options.global_batch == 0) return options.batch_size;
  const long parts = static_cast<long>(ranks) * options.accumulate;
  if (options.global_batch % parts != 0)
    throw UsageError(
        fmt::format("--global-batch {}: not a multiple of {} (the {} rank{} that compute{} x "
                    "--accumulate {})",
                    options.global_batch, parts, ranks, ranks == 1 ? "" : "s",
                    ranks == 1 ? "s" : "", options.accumulate));
  return static_cast<int>(options.global_batch / parts);
}

EngineSettings engine_settings(const StepOptions& options, const Backend& backend, int classes) {
  const StrategyEntry& strategy = find_strategy(options.strategy.strategy);
  const int ranks = std::max(1, strategy.computing(backend.world->size()));
  EngineSettings settings;
  settings.network = {find_architecture(options.model.model),
                      batch_size_of(options, ranks),
                      options.model.image_size,
                      classes,
                      parse_precision(options.model.precision, backend.kind),
                      static_cast<float>(options.model.label_smoothing),
                      options.model.recompute,
                      tuning_of(options.model)};
  settings.optimizer = options.optimizer;
  settings.ema = options.ema;
  settings.strategy = options.strategy;
  settings.accumulate = options.accumulate;
  if (options.graph == "off") settings.no_graph = "--graph off";
  settings.seed = static_cast<std::uint64_t>(options.seed);
  settings.weights_file = options.model.weights;
  return settings;
}

namespace {

constexpr int kMostWorkers = 1024;

/// Throws UsageError where it is neither auto nor such a number; 0 of auto.
int parse_workers(const std::string& text) {
  if (text == "auto") return 0;
  int workers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), workers);
  if (error != std::errc() || end != text.data() + text.size() || workers < 1 ||
      workers > kMostWorkers)
    throw UsageError(
        fmt::format("--workers {}: must be auto, or a number from 1 to {}", text, kMostWorkers));
  return workers;
}

}  // namespace

void declare_options(OptionSet& options, InputOptions& values) {
  options
      .add("--workers,--num-workers", values.workers,
           "loader threads per rank; auto: the cores that the rank may use, divided by the ranks "
           "that share them")
      .metavar("N")
      .only_with({"--data-dir", "--train-dir", "--val-dir"});
  options.add("--prefetch", values.prefetch, "batches decoded ahead")
      .at_least(1)
      .at_most(1024)
      .only_with({"--data-dir", "--train-dir", "--val-dir"});
  options
      .add("--decoder", values.decoder,
           "decoder of the training images that are cropped; nvjpeg: the GPU's JPEG engines for "
           "--decoder-share of the baseline JPEG files, and the CPU for the rest; auto: nvjpeg "
           "where there are engines and fewer than 9 workers per rank, else cpu, which is faster; "
           "a training that continues has "
           "its checkpoint's")
      .one_of({"auto", "cpu", "nvjpeg"})
      .only_with({"--data-dir", "--train-dir"});
  options
      .add("--decoder-share", values.decoder_share,
           "percent of the images that the device decodes where it can; which ones depends on "
           "--seed, epoch and image alone")
      .at_least(0)
      .at_most(100)
      .metavar("PERCENT")
      .only_with({"--data-dir", "--train-dir"});
  options.check([&] { parse_workers(values.workers); });
}

int workers_of(const InputOptions& options, int cores) {
  const int requested = parse_workers(options.workers);
  return requested > 0 ? requested : std::clamp(cores, 1, kMostWorkers);
}

}  // namespace shakedown::training
