#include "training/programs/train_runs.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/measure/records.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/detector.hpp"
#include "training/programs/invariant.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/records.hpp"

namespace shakedown::training {
namespace {

/// Options that the conditions of its `metric` lines have in addition to an Identity; none: there
/// is no record.
using Conditions = std::optional<std::map<std::string, std::string>>;

Conditions conditions_of(const TrainOptions& options) {
  if (options.record.empty()) return std::nullopt;
  const auto text = [](bool value) { return value ? "true" : "false"; };
  return {{{"fusion", options.model.fusion},
           {"deterministic", text(options.model.deterministic)},
           {"autotune", text(options.model.autotune)},
           {"check_neighbour", std::to_string(options.detector.check_neighbour)}}};
}

/// Whether the strategy computes what it must; pass where there is nothing to certify.
Outcome certified(const Run& run) {
  const Certificate certificate =
      certify(run.engine, run.batches, run.engine.learning_rate(), run.session);
  run.write("certificate", record_of(certificate));
  say(run.session, summary_of(certificate));
  return certificate.applies() ? certificate.outcome : Outcome::pass;
}

std::vector<judge::Observation> observe(const Run& run, const Throughput& measured,
                                        const Detector& detector, const Conditions& conditions) {
  if (!conditions) return {};
  constexpr int kMost = 30;
  const OwnCompute own = measure_own_compute(run.engine, std::min(measured.iterations, kMost),
                                             [&] { detector.delay(); });
  return observations_of(measured, own, run.identity, *conditions, run.engine.backend, run.session);
}

}  // namespace

ExitCode run_throughput(const Run& run, const TrainOptions& options, const OutputFiles& files) {
  const TimingOptions& timing = options.timing;
  Engine& engine = run.engine;
  Detector detector(run);
  const Outcome certificate = options.certificate ? certified(run) : Outcome::pass;
  const std::optional<double> without_tree = rate_without_tree(run, timing);
  detector.start();
  const Throughput measured = measure_throughput(engine, run.batches, timing, run.session);
  const ExitCode detected = detector.finish();
  const bool sound =
      std::isfinite(measured.loss_last) && unsound_weights(engine, run.session).empty();
  const auto trained = sound ? state_to_save(files, engine) : std::vector<Tensor>();
  const auto observations = observe(run, measured, detector, conditions_of(options));
  const Trace trace = trace_steps(engine, run.batches, steps_to_trace(timing.iterations),
                                  engine.learning_rate(), run.session);  // trains on
  const ExchangeSums exchange = exchange_sums(trace);
  Json step = merged(record_of(measured), record_of(exchange));
  std::string summary = summary_of(measured);
  if (without_tree) {
    step["images_per_s_without_tree"] = *without_tree;
    summary += text_of_tree_cost(measured, *without_tree);
  }
  if (options.max_batch > 0) {
    const LargestBatch batch = largest_batch_of(engine, run.session);
    step.update(record_of(batch));
    summary += summary_of(batch, measured);
  }
  run.write("step", merged(step, record_of(run.input)));
  const Breakdown breakdown = break_down(trace, nullptr);
  run.write("breakdown", record_of(breakdown));
  if (engine.step.strategy_entry().ranks_agree)
    for (const ExchangeTimes& bucket : bucket_times(trace)) run.write("bucket", record_of(bucket));
  for (const judge::Observation& observation : observations)
    run.record.write("metric", judge::record_of(observation));
  say(run.session, summary + summary_of(breakdown));
  if (sound) save(files, trained, run.session);
  write_trace(files, run, trace);
  check_trained(measured);
  const ExitCode certified_as = exit_code_of(certificate);
  return detected == ExitCode::pass || certificate == Outcome::fail ? certified_as : detected;
}

namespace {

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

ExitCode run_training(const Run& run, const TrainOptions& options, const OptionSet& set,
                      const Dataset& dataset, TrainingData& data, const OutputFiles& files) {
  Engine& engine = run.engine;
  EpochSettings epochs{options.epochs, options.optimizer.learning_rate, options.schedule};
  epochs.checkpoints = {options.checkpoints,
                        run_facts(set, engine.settings(), engine.step.ranks_computing(),
                                  dataset.training(), data.setup()),
                        files.metadata, &data.bad_images()};
  epochs.images = static_cast<std::int64_t>(dataset.training().size());
  Json training = training_fields(options, engine, dataset, data.batches_per_epoch());
  Detector detector(run);
  trace_beginning(files, run, engine.learning_rate());
  run.write("training", merged(training, {{"init_stop_ms", unix_ms()}}));
  detector.start(data.batches_per_epoch() / options.accumulate);
  const TrainingEnd end =
      train_epochs(run, data.batches_per_epoch(), data.validation(), epochs);
  const ExitCode detected = detector.finish();
  if (!end.complete) return end.code;
  save(files, state_to_save(files, engine), run.session);
  return end.code == ExitCode::pass ? detected : end.code;
}

}  // namespace shakedown::training
