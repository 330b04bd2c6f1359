#include "training/programs/epochs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/progress.hpp"
#include "common/text_table.hpp"
#include "training/measure/weights_check.hpp"
#include "training/programs/records.hpp"

namespace shakedown::training {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double highest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

/// In a column of nine characters.
std::string text_of_loss(double loss) {
  return loss < 1e4 ? fmt::format("{:.4f}", loss) : fmt::format("{:.3e}", loss);
}

std::string percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

const std::vector<Column> kColumns{
    {"", "epoch", 5},        {"train", "loss", 9}, {"train", "top1", 8},
    {"val", "loss", 9},      {"val", "top1", 8},   {"val", "top5", 8},
    {"learning", "rate", 8}, {"", "images/s", 9},  {"", "time", 8}};

std::string row_of(const EpochResult& result) {
  std::vector<std::string> cells(kColumns.size());
  cells[0] = fmt::format("{:>5}", result.epoch);
  if (const auto& trained = result.trained) {
    cells[1] = text_of_loss(trained->loss);
    cells[2] = percent(trained->top1);
    cells[6] = fmt::format("{:.2g}", trained->learning_rate);
    cells[7] = fmt::format("{:.1f}", trained->images_per_s);
    cells[8] = readable_duration(result.seconds);
  }
  if (const auto& validated = result.validated) {
    cells[3] = text_of_loss(validated->loss);
    cells[4] = percent(validated->top1);
    cells[5] = percent(validated->top5);
  }
  return row(kColumns, cells);
}

/// The skipped steps are counted from `skipped_before` on.
void check_epoch(const EpochResult& result, int skipped_before, long updates) {
  const bool finite = (!result.trained || std::isfinite(result.trained->loss)) &&
                      (!result.validated || std::isfinite(result.validated->loss));
  if (!finite)
    throw FailError(
        fmt::format("the loss is not finite in epoch {}: a lower --learning-rate, or "
                    "another --precision",
                    result.epoch));
  if (result.trained && result.trained->skipped_steps - skipped_before == updates)
    throw FailError(
        fmt::format("all {} steps of epoch {} were skipped, as their gradients were "
                    "not finite: nothing was trained",
                    updates, result.epoch));
}

/// `epoch_s` is the mean of the epochs before, validation included; 0 for the first.
TrainedEpoch train_epoch(const Run& run, int epoch, long updates, const Schedule& schedule,
                         const EpochSettings& settings, double epoch_s) {
  Engine& engine = run.engine;
  const auto start = Clock::now();
  Progress progress(fmt::format("epoch {}/{}", epoch, settings.epochs), updates, "steps",
                    run.session.is_root(), {settings.epochs - epoch, epoch_s});
  engine.model.network().zero_total_metrics();
  const InputTimes input_before = run.batches.times();
  run.batches.start_epoch(epoch);
  TrainedEpoch trained;
  for (long i = 0; i < updates; ++i) {
    trained.learning_rate =
        schedule.at(epoch - 1 + static_cast<double>(i) / static_cast<double>(updates));
    engine.step.run(
        [&](int) { ENSURE(run.batches.load_next(engine.model.network()), "a batch is missing"); },
        trained.learning_rate);
    progress.update(i + 1);
  }
  engine.finish();
  trained.seconds = seconds_since(start);
  const Metrics total = total_metrics(engine, run.session);
  const auto images = static_cast<double>(total.samples);
  trained.loss = total.loss_sum / images;
  trained.top1 = static_cast<double>(total.top1) / images;
  trained.images_per_s = images / trained.seconds;
  trained.input = over_ranks(run.batches.times() - input_before, run.session);
  trained.peak_memory_bytes =
      run.session.all_gather(static_cast<double>(engine.device().peak_allocated_bytes()));
  trained.skipped_steps =
      static_cast<int>(highest(run.session.all_gather(engine.model.read_scalars().skipped)));
  return trained;
}

void check_possible(const Run& run, long batches_per_epoch) {
  const int accumulate = run.engine.settings().accumulate;
  if (batches_per_epoch < accumulate)
    throw UsageError(fmt::format("--accumulate {}: an epoch has only {} batches per rank",
                                 accumulate, batches_per_epoch));
}

}  // namespace

void train_epochs(const Run& run, long batches_per_epoch, BatchSource* validation,
                  const EpochSettings& settings) {
  check_possible(run, batches_per_epoch);
  const Schedule schedule(settings.schedule, settings.learning_rate, settings.epochs);
  const long updates = batches_per_epoch / run.engine.settings().accumulate;
  const auto print = [&](const std::string& line) {
    if (run.session.is_root()) fmt::print("{}", line);
    std::fflush(stdout);
  };
  print(heading(kColumns));
  int skipped_before = 0;
  double epoch_s = 0;  // mean of those before
  std::string advice;  // given once
  for (int epoch = 1; epoch <= settings.epochs; ++epoch) {
    const auto start = Clock::now();
    EpochResult result;
    result.epoch = epoch;
    result.trained = train_epoch(run, epoch, updates, schedule, settings, epoch_s);
    if (validation != nullptr) result.validated = validate(run.engine, *validation, run.session);
    result.seconds = seconds_since(start);
    epoch_s += (result.seconds - epoch_s) / epoch;
    print(row_of(result));
    run.write("epoch", merged(record_of(result), record_of(run.input)));
    if (run.session.is_root()) settings.after_epoch(result);
    if (advice.empty()) {
      advice = input_advice(result.trained->input, run.input, result.trained->seconds,
                            run.engine.step.ranks_computing());
      if (!advice.empty()) print(wrapped(advice, 2) + "\n");
    }
    check_epoch(result, skipped_before, updates);
    skipped_before = result.trained->skipped_steps;
  }
  check_weights(run.engine, run.session, "after the last epoch");
}

}  // namespace shakedown::training
