#include "training/programs/train_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/options.hpp"
#include "common/text_table.hpp"
#include "resnet/architecture.hpp"
#include "training/measure/neighbour_check.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/run.hpp"

namespace shakedown::training {
namespace {

TrainOptions with_batch(TrainOptions options, int batch_size) {
  options.batch_size = batch_size;
  return options;
}

/// The fields of a `training` record, but for when the training begins.
Json training_fields(const TrainOptions& options, const Engine& engine, const Dataset& dataset,
                     long batches_per_epoch) {
  const ScheduleOptions& schedule = options.schedule;
  const long updates = std::max(1L, batches_per_epoch / options.accumulate);
  const Schedule rate(schedule, options.optimizer.learning_rate, options.epochs, updates);
  return {{"train_images", dataset.training().size()},
          {"val_images", options.data.val_dir.empty() ? 0 : dataset.validation().size()},
          {"updates_per_epoch", updates},
          {"ranks_computing", engine.step.ranks_computing()},
          {"warmup_epochs", schedule.lr_warmup_steps > 0
                                ? schedule.lr_warmup_steps / static_cast<double>(updates)
                                : schedule.lr_warmup_epochs},
          {"end_learning_rate", rate.at(options.epochs * updates)},
          {"init_start_ms", options.started_ms}};
}

}  // namespace

void take_saved_decoder(TrainOptions& options, const MpiSession& session) {
  std::string& decoder = options.data.decoder;
  if (options.epochs == 0 || decoder != "auto") return;
  const std::string saved =
      session.is_root() ? saved_fact(options.checkpoints, "--decoder") : std::string();
  const std::string of_root = session.all_gather(saved).front();
  if (!of_root.empty()) decoder = of_root;
}

std::string remarks_of(const TrainOptions& options, BackendKind backend) {
  const auto precision = precision_remark("--precision", {options.model.precision}, backend);
  const std::string data = wrapped(options.data.remark, 2);
  return precision + (precision.empty() || data.empty() ? "" : "\n") + data;
}

EngineSettings run_settings(const TrainOptions& options, const Backend& backend, int classes) {
  EngineSettings settings = engine_settings(options, backend, classes);
  if (settings.no_graph.empty() && options.layers) settings.no_graph = "--layers times each call";
  settings.input_bytes = input_bytes(options.data, settings, backend);
  if (options.detector.check_neighbour > 0)
    settings.input_bytes = [input = settings.input_bytes,
                            kind = backend.kind](const NetworkSettings& shape) {
      return input(shape) + kept_batch_bytes(shape, kind);
    };
  return settings;
}

Conditions conditions_of(const TrainOptions& options) {
  if (options.record.empty()) return std::nullopt;
  const auto text = [](bool value) { return value ? "true" : "false"; };
  return {{{"fusion", options.model.fusion},
           {"deterministic", text(options.model.deterministic)},
           {"autotune", text(options.model.autotune)},
           {"check_neighbour", std::to_string(options.detector.check_neighbour)}}};
}

TrainingSettings training_settings(const TrainOptions& options, const OptionSet& set,
                                   const Engine& engine, const Dataset& dataset,
                                   TrainingData& data) {
  EpochSettings epochs{options.epochs, options.optimizer.learning_rate, options.schedule};
  epochs.checkpoints = {options.checkpoints,
                        run_facts(set, engine.settings(), engine.step.ranks_computing(),
                                  dataset.training(), data.setup()),
                        dataset.metadata(options.model), &data.bad_images()};
  epochs.images = static_cast<std::int64_t>(dataset.training().size());
  return {std::move(epochs), training_fields(options, engine, dataset, data.batches_per_epoch())};
}

std::vector<Output> outputs_of(const TrainOptions& options) {
  return {{"--record", options.record},
          {"--trace", options.trace},
          {"--save", options.save},
          {"--logits", options.evaluation.logits}};
}

OutputFiles output_files(const TrainOptions& options, const Dataset& dataset) {
  return {options.save, options.trace, options.evaluation.logits, dataset.metadata(options.model)};
}

long batches_needed(const TrainOptions& options) {
  if (options.epochs > 0 || options.evaluation.evaluate) return 0;
  return (static_cast<long>(options.timing.iterations) + options.timing.warmup) *
         options.accumulate;
}

ExitCode at_requested_batch(const TrainOptions& options, int classes, Backend& backend,
                            const MpiSession& session,
                            const std::function<ExitCode(const TrainOptions&)>& run) {
  if (options.max_batch == 0) return run(options);
  return at_largest_batch(
      options.max_batch,
      [&](int batch_size) {
        return run_settings(with_batch(options, batch_size), backend, classes);
      },
      backend, session, [&](int batch_size) { return run(with_batch(options, batch_size)); });
}

}  // namespace shakedown::training
