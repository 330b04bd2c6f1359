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

/// The ranks' metrics added up.
Metrics add_up(const Metrics& mine, const MpiSession& session) {
  const auto total = [&](double value) {
    double sum = 0;
    for (double v : session.all_gather(value)) sum += v;
    return sum;
  };
  Metrics all;
  all.loss_sum = total(mine.loss_sum);
  all.top1 = static_cast<std::int64_t>(total(static_cast<double>(mine.top1)));
  all.top5 = static_cast<std::int64_t>(total(static_cast<double>(mine.top5)));
  all.samples = static_cast<std::int64_t>(total(static_cast<double>(mine.samples)));
  return all;
}

/// All ranks that compute validate the same weights, each on a part of the images.
Validation validate(Engine& engine, BatchSource& batches, const MpiSession& session) {
  engine.model.with_common_weights([&] {
    Network& network = engine.model.network();
    network.zero_total_metrics();
    batches.start_epoch(0);
    // A server waits as long as the others work.
    const bool computes = engine.step.computes();
    const bool server_waits = engine.step.first_computing() > 0;
    const auto part = server_waits ? session.split(computes ? 0 : -1) : nullptr;
    while (computes && batches.load_next(network)) {
      engine.model.evaluate();
      if (part) part->progress();
    }
    engine.finish();
    if (server_waits) part ? session.barrier() : session.wait_idle();
  });
  const Metrics total = add_up(engine.model.network().read_metrics().total, session);
  const auto images = static_cast<double>(total.samples);
  return {total.loss_sum / images, static_cast<double>(total.top1) / images,
          static_cast<double>(total.top5) / images, total.samples, engine.step.first_computing()};
}

/// The weights, and their average where there is one.
void validate(const Run& run, BatchSource& batches, EpochResult& result) {
  ModelState& model = run.engine.model;
  result.validated = validate(run.engine, batches, run.session);
  if (result.trained && model.averages_weights())
    model.with_average_weights(
        [&] { result.validated_average = validate(run.engine, batches, run.session); });
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

void put(const std::optional<Validation>& validated, std::vector<std::string>& cells) {
  if (!validated) return;
  cells[3] = text_of_loss(validated->loss);
  cells[4] = percent(validated->top1);
  cells[5] = percent(validated->top5);
}

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
  put(result.validated, cells);
  std::string rows = row(kColumns, cells);
  if (result.validated_average) {
    cells.assign(kColumns.size(), "");
    cells[0] = "  ema";
    put(result.validated_average, cells);
    rows += row(kColumns, cells);
  }
  return rows;
}

/// The skipped steps are counted from `skipped_before` on.
void check_epoch(const EpochResult& result, int skipped_before, long updates,
                 const std::string& weights_file) {
  const bool finite = (!result.trained || std::isfinite(result.trained->loss)) &&
                      (!result.validated || std::isfinite(result.validated->loss));
  if (!finite && result.epoch == 0)
    throw FailError(fmt::format("the validation loss of --weights {} is not finite", weights_file));
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

TrainedEpoch train_epoch(const Run& run, int epoch, long updates, const Schedule& schedule,
                         const EpochSettings& settings) {
  Engine& engine = run.engine;
  const auto start = Clock::now();
  Progress progress(fmt::format("epoch {}/{}", epoch, settings.epochs), updates, "steps",
                    run.session.is_root());
  engine.model.network().zero_total_metrics();
  const InputTimes input_before = run.batches.times();
  run.batches.start_epoch(epoch);
  TrainedEpoch trained;
  for (long i = 0; i < updates; ++i) {
    trained.learning_rate = schedule.at((epoch - 1) * updates + i);
    engine.step.run(
        [&](int) { ENSURE(run.batches.load_next(engine.model.network()), "a batch is missing"); },
        trained.learning_rate);
    progress.update(i + 1);
  }
  engine.finish();
  trained.seconds = seconds_since(start);
  const Metrics total = add_up(engine.model.network().read_metrics().total, run.session);
  const auto images = static_cast<double>(total.samples);
  trained.loss = total.loss_sum / images;
  trained.top1 = static_cast<double>(total.top1) / images;
  trained.images_per_s = images / trained.seconds;
  trained.input = over_ranks(run.batches.times() - input_before, run.session);
  const StepScalars scalars = engine.model.read_scalars();
  if (engine.settings().optimizer.needs_norms()) trained.grad_norm = scalars.grad_norm;
  trained.skipped_steps = static_cast<int>(highest(run.session.all_gather(scalars.skipped)));
  if (run.bad_images) trained.bad_images = run.bad_images();
  return trained;
}

void check_possible(const Run& run, long batches_per_epoch, int epochs) {
  const std::string& seeded = run.engine.model.load_remarks().seeded;
  if (epochs == 0 && !seeded.empty()) throw UsageError("--epochs 0 evaluates: " + seeded);
  const int accumulate = run.engine.settings().accumulate;
  if (epochs > 0 && batches_per_epoch < accumulate)
    throw UsageError(fmt::format("--accumulate {}: an epoch has only {} batches per rank",
                                 accumulate, batches_per_epoch));
}

}  // namespace

void train_epochs(const Run& run, long batches_per_epoch, BatchSource* validation,
                  const EpochSettings& settings) {
  check_possible(run, batches_per_epoch, settings.epochs);
  const long updates = batches_per_epoch / run.engine.settings().accumulate;
  const Schedule schedule(settings.schedule, settings.learning_rate, settings.epochs, updates);
  const auto print = [&](const std::string& line) {
    if (run.session.is_root()) fmt::print("{}", line);
    std::fflush(stdout);
  };
  print(heading(kColumns));
  int skipped_before = 0;
  std::string advice;  // given once
  for (int epoch = settings.epochs > 0 ? 1 : 0; epoch <= settings.epochs; ++epoch) {
    const auto start = Clock::now();
    EpochResult result;
    result.epoch = epoch;
    if (epoch > 0) result.trained = train_epoch(run, epoch, updates, schedule, settings);
    if (validation != nullptr) validate(run, *validation, result);
    result.seconds = seconds_since(start);
    print(row_of(result));
    run.write("epoch", merged(record_of(result), record_of(run.input)));
    if (result.trained && advice.empty()) {
      advice = input_advice(result.trained->input, run.input, result.trained->seconds,
                            run.engine.step.ranks_computing());
      if (!advice.empty()) print(wrapped(advice, 2) + "\n");
    }
    check_epoch(result, skipped_before, updates, run.engine.settings().weights_file);
    if (result.trained) skipped_before = result.trained->skipped_steps;
  }
  check_weights(run.engine, run.session, "after the last epoch");
}

}  // namespace shakedown::training
