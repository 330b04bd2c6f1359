#include "training/programs/epochs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/progress.hpp"
#include "training/measure/weights_check.hpp"

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
Metrics validate(Engine& engine, BatchSource& batches, const MpiSession& session) {
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
  return add_up(engine.model.network().read_metrics().total, session);
}

/// In a column of ten characters.
std::string text_of_loss(double loss) {
  return loss < 1e5 ? fmt::format("{:>10.4f}", loss) : fmt::format("{:>10.3e}", loss);
}

void check_epoch(const Json& line, const std::string& weights_file) {
  const auto finite = [&](const char* key) {
    return !line.contains(key) || std::isfinite(line[key].get<double>());
  };
  if (finite("train_loss") && finite("val_loss")) return;
  const int epoch = line.at("epoch").get<int>();
  if (epoch == 0)
    throw FailError(fmt::format("the validation loss of --weights {} is not finite", weights_file));
  throw FailError(
      fmt::format("the loss is not finite in epoch {}: a lower --learning-rate, or "
                  "another --precision",
                  epoch));
}

/// An epoch whose every step was skipped trained nothing. Returns the steps skipped so far.
int check_skipped(const Json& line, int before, long steps) {
  const int skipped = line.at("skipped_steps").get<int>();
  if (skipped - before == steps)
    throw FailError(
        fmt::format("all {} steps of epoch {} were skipped, as their gradients were "
                    "not finite: nothing was trained",
                    steps, line.at("epoch").get<int>()));
  return skipped;
}

}  // namespace

void train_epochs(Engine& engine, BatchSource& training, long batches_per_epoch,
                  BatchSource* validation, const EpochSettings& settings, const Json& identity,
                  const MpiSession& session, Record& record) {
  if (settings.epochs == 0 && !engine.model.load_remarks().seeded.empty())
    throw UsageError("--epochs 0 evaluates: " + engine.model.load_remarks().seeded);
  const Schedule schedule(settings.schedule, settings.learning_rate, settings.epochs);
  const long updates = batches_per_epoch / engine.settings().accumulate;
  if (settings.epochs > 0 && updates == 0)
    throw UsageError(fmt::format("--accumulate {}: an epoch has only {} batches a rank",
                                 engine.settings().accumulate, batches_per_epoch));
  if (session.is_root())
    fmt::print("{:>5} {:>10} {:>10} {:>10} {:>10} {:>9} {:>8} {:>10} {:>8}\n", "epoch",
               "train loss", "train top1", "val loss", "val top1", "val top5", "lr", "images/s",
               "time");

  int skipped_before = 0;
  for (int epoch = settings.epochs > 0 ? 1 : 0; epoch <= settings.epochs; ++epoch) {
    Json line = identity;
    line["epoch"] = epoch;
    const auto start = Clock::now();
    double rate = schedule.at(epoch - 1);
    std::string shown = fmt::format("{:>5}", epoch);
    if (epoch > 0) {
      Progress progress(fmt::format("epoch {}/{}", epoch, settings.epochs), updates, "steps",
                        session.is_root());
      engine.model.network().zero_total_metrics();
      training.start_epoch(epoch);
      for (long i = 0; i < updates; ++i) {
        rate = schedule.at(epoch - 1 + static_cast<double>(i) / static_cast<double>(updates));
        engine.step.run(
            [&](int) { ENSURE(training.load_next(engine.model.network()), "a batch is missing"); },
            rate);
        progress.update(i + 1);
      }
      engine.finish();
      const double elapsed = seconds_since(start);
      const Metrics total = add_up(engine.model.network().read_metrics().total, session);
      const auto samples = static_cast<double>(total.samples);
      line["train_loss"] = total.loss_sum / samples;
      line["train_top1"] = static_cast<double>(total.top1) / samples;
      line["learning_rate"] = rate;
      line["images_per_s"] = samples / elapsed;
      line["epoch_s"] = elapsed;
      line["input_stall_ms"] = highest(session.all_gather(training.stall_seconds() * 1e3));
      line["skipped_steps"] =
          static_cast<int>(highest(session.all_gather(engine.model.read_scalars().skipped)));
      shown += fmt::format(" {} {:>9.2f}%", text_of_loss(total.loss_sum / samples),
                           100.0 * static_cast<double>(total.top1) / samples);
    } else {
      shown += fmt::format(" {:>10} {:>10}", "", "");
    }
    if (validation != nullptr) {
      const Metrics total = validate(engine, *validation, session);
      const auto samples = static_cast<double>(total.samples);
      line["val_loss"] = total.loss_sum / samples;
      line["val_top1"] = static_cast<double>(total.top1) / samples;
      line["val_top5"] = static_cast<double>(total.top5) / samples;
      line["validated_images"] = total.samples;
      line["validating_rank"] = engine.step.first_computing();
      shown += fmt::format(" {} {:>9.2f}% {:>8.2f}%", text_of_loss(total.loss_sum / samples),
                           100.0 * static_cast<double>(total.top1) / samples,
                           100.0 * static_cast<double>(total.top5) / samples);
    } else {
      shown += fmt::format(" {:>10} {:>10} {:>9}", "", "", "");
    }
    if (epoch > 0)
      shown += fmt::format(" {:>8.2g} {:>10.1f} {:>8}", rate, line["images_per_s"].get<double>(),
                           readable_duration(seconds_since(start)));
    if (session.is_root()) fmt::print("{}\n", shown);
    std::fflush(stdout);
    record.write("epoch", line);
    check_epoch(line, engine.settings().weights_file);
    if (epoch > 0) skipped_before = check_skipped(line, skipped_before, updates);
  }
  check_weights(engine, session, "after the last epoch");
}

}  // namespace shakedown::training
