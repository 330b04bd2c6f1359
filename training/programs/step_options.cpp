#include "training/programs/step_options.hpp"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace shakedown::training
