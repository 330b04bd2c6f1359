#include "training/programs/epochs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "resnet/tensor_file.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed_s(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// In a column of nine characters.
std::string text_of_loss(double loss) {
  if (std::isnan(loss)) return "nan";  // of either sign
  return loss < 1e4 ? fmt::format("{:.4f}", loss) : fmt::format("{:.3e}", loss);
}

std::string percent_of(double share) { return fmt::format("{:.2f}%", 100 * share); }

const std::vector<Column> kColumns{
    {"", "epoch", 5},        {"train", "loss", 9}, {"train", "top1", 8},
    {"val", "loss", 9},      {"val", "top1", 8},   {"val", "top5", 8},
    {"learning", "rate", 8}, {"", "images/s", 9},  {"", "time", 8}};

void put(const std::optional<Validation>& validated, std::vector<std::string>& cells) {
  if (!validated) return;
  cells[3] = text_of_loss(validated->loss);
  cells[4] = percent_of(validated->top1);
  cells[5] = percent_of(validated->top5);
}

std::string row_of(const EpochResult& result) {
  std::vector<std::string> cells(kColumns.size());
  cells[0] = fmt::format("{:>5}", result.epoch);
  if (const auto& trained = result.trained) {
    cells[1] = text_of_loss(trained->loss);
    cells[2] = percent_of(trained->top1);
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

std::int64_t milliseconds(double seconds) { return std::llround(1e3 * seconds); }

void print(const Run& run, const std::string& line) {
  if (run.session.is_root()) fmt::print("{}", line);
  std::fflush(stdout);
}

void report(const Run& run, const EpochResult& result) {
  print(run, row_of(result));
  run.write("epoch", merged(record_of(result), run.input()));
}

void check_possible(const Run& run, long batches_per_epoch) {
  const int accumulate = run.engine.settings().accumulate;
  if (batches_per_epoch < accumulate)
    throw UsageError(fmt::format("--accumulate {}: an epoch has only {} per rank", accumulate,
                                 counted(batches_per_epoch, "batch", "es")));
}

/// One training and how far it has come.
class Training {
 public:
  Training(const Run& run, long batches_per_epoch, const CheckpointSettings& checkpoints)
      : run_(run),
        epochs_(run.options.epochs),
        updates_(batches_per_epoch / run.engine.settings().accumulate),
        schedule_(run.options.schedule, run.options.optimizer.learning_rate, epochs_, updates_),
        checkpoints_(checkpoints, run.engine, run.session),
        at_(checkpoints_.resume()) {}

  TrainingEnd run(BatchSource* validation) {
    if (at_.epoch > epochs_)
      print(run_, fmt::format("--epochs {}: nothing is left to be trained\n", epochs_));
    else
      print(run_, text_of_dropped() + heading(kColumns));
    while (at_.epoch <= epochs_) {
      if (train_epoch()) return end();
      EpochResult result = finished_training();
      if (validation != nullptr && !validate_epoch(*validation, result)) return end();
      result.end_ms = unix_ms();
      report(run_, result);
      check_epoch(result, at_.skipped_before, updates_);
      if (go_on_from(result)) return end();
    }
    check_weights(run_.engine, run_.session, "after the last epoch");
    return end();
  }

 private:
  /// The rest of the epoch. Whether the training is to stop.
  bool train_epoch() {
    Engine& engine = run_.engine;
    Progress progress(fmt::format("epoch {}/{}", at_.epoch, epochs_), updates_, "steps",
                      run_.session.is_root(), {epochs_ - at_.epoch, epoch_seconds_}, at_.seconds);
    if (at_.update == 0) engine.model.network().zero_total_metrics();
    const InputTimes input_before = run_.batches.times();
    const InputTimes input_so_far = at_.input;
    const auto note_costs = [&] {
      at_.seconds = seconds_before_ + elapsed_s(started_);
      at_.input = input_so_far + (run_.batches.times() - input_before);
    };
    run_.batches.start_epoch(at_.epoch, at_.update * engine.settings().accumulate);
    started_ = Clock::now();
    seconds_before_ = at_.seconds;
    while (at_.update < updates_) {
      engine.step.run(
          [&](int) {
            ENSURE(run_.batches.load_next(engine.model.network()), "a batch is missing");
          },
          learning_rate(at_.update));
      ++at_.update;
      at_.images += images_per_update();
      note_costs();
      progress.update(at_.update);
      if (checkpoints_.stop_after_update(at_)) return true;
    }
    engine.finish();
    note_costs();
    return checkpoints_.stop_between(at_);
  }

  /// The figures of an epoch whose updates are done, however often it was interrupted.
  EpochResult finished_training() {
    ModelState& model = run_.engine.model;
    const Metrics total = total_metrics(run_.engine, run_.session);
    const auto images = static_cast<double>(total.samples);
    TrainedEpoch trained;
    trained.loss = total.loss_sum / images;
    trained.top1 = static_cast<double>(total.top1) / images;
    trained.learning_rate = learning_rate(updates_ - 1);
    trained.images_dropped = images_dropped();
    trained.images_per_s = images / at_.seconds;
    trained.seconds = at_.seconds;
    trained.input = over_ranks(at_.input, run_.session);
    const StepScalars scalars = model.read_scalars();
    if (run_.engine.settings().optimizer.needs_norms()) trained.grad_norm = scalars.grad_norm;
    trained.skipped_steps =
        static_cast<int>(std::ranges::max(run_.session.all_gather(scalars.skipped)));
    if (run_.data != nullptr) trained.bad_images = run_.data->bad_count();
    trained.peak_memory_bytes =
        run_.session.all_gather(static_cast<double>(model.device().peak_allocated_bytes()));

    EpochResult result;
    result.epoch = at_.epoch;
    result.trained = trained;
    result.seconds = at_.seconds;
    return result;
  }

  /// Of the weights, and of their average where there is one. False where a signal ends it: then
  /// the checkpoint is of the end of the epoch's training, and a resumed run validates again.
  bool validate_epoch(BatchSource& batches, EpochResult& result) {
    const auto start = Clock::now();
    ModelState& model = run_.engine.model;
    const Metrics of_training = model.network().read_metrics().total;
    const auto validated = [&] {
      return validate(run_.engine, batches, run_.session,
                      [&] { return !checkpoints_.stops_validation(); });
    };
    result.validated = validated();
    bool complete = result.validated.has_value();
    if (complete && model.averages_weights()) {
      model.with_average_weights([&] { result.validated_average = validated(); });
      complete = result.validated_average.has_value();
    }
    result.seconds += elapsed_s(start);
    if (complete) return true;
    model.network().set_total_metrics(of_training);
    checkpoints_.stop(at_);
    return false;
  }

  /// To the next epoch. Whether the training is to stop before it.
  bool go_on_from(const EpochResult& result) {
    epoch_seconds_ = result.seconds;
    at_ = {result.epoch + 1, 0, at_.images, 0, result.trained->skipped_steps};
    const double top1 = result.validated ? result.validated->top1 : kNoTop1;
    const bool stops = checkpoints_.stop_after_epoch(at_, top1, result.epoch == epochs_);
    record_checkpoints();
    return stops;
  }

  void record_checkpoints() {
    for (const CheckpointReport& written : checkpoints_.reports())
      run_.write("checkpoint", record_of(written));
  }

  TrainingEnd end() {
    const ExitCode code = checkpoints_.finish();
    record_checkpoints();
    return {code, at_.epoch > epochs_};
  }

  /// Of an update of the epoch under way.
  double learning_rate(long update) const {
    return schedule_.at((at_.epoch - 1) * updates_ + update);
  }

  std::int64_t images_per_update() const {
    const EngineSettings& s = run_.engine.settings();
    return std::int64_t{s.network.batch_size} * s.accumulate * run_.engine.step.ranks_computing();
  }

  /// Of the training data.
  std::int64_t images() const {
    return static_cast<std::int64_t>(run_.data->dataset().training().size());
  }
  std::int64_t images_dropped() const {
    return run_.data == nullptr ? 0 : images() - updates_ * images_per_update();
  }

  /// A line, or nothing.
  std::string text_of_dropped() const {
    const std::int64_t dropped = images_dropped();
    if (dropped == 0) return "";
    return wrapped(fmt::format("each epoch trains {} of {} images, in updates of {}: {} that fill "
                               "none are left out, others in each epoch",
                               images() - dropped, images(), images_per_update(), dropped),
                   2) +
           "\n";
  }

  const Run& run_;
  const int epochs_;
  const long updates_;  // per epoch
  const Schedule schedule_;
  Checkpoints checkpoints_;
  TrainingPosition at_;
  double epoch_seconds_ = 0;  // of the epoch before, with validation
  // Of the epoch under way.
  Clock::time_point started_;
  double seconds_before_ = 0;  // before it was interrupted
};

}  // namespace

Json record_of(const EpochResult& result) {
  Json fields{{"epoch", result.epoch}};
  if (const auto& trained = result.trained) {
    fields.update({{"train_loss", trained->loss},
                   {"train_top1", trained->top1},
                   {"learning_rate", trained->learning_rate},
                   {"images_per_s", trained->images_per_s},
                   {"epoch_s", trained->seconds},
                   {"total_s", result.seconds},
                   {"start_ms", result.end_ms - milliseconds(result.seconds)},
                   {"trained_ms", result.end_ms - milliseconds(result.seconds - trained->seconds)},
                   {"end_ms", result.end_ms},
                   {"input_stall_ms", 1e3 * trained->input.stall_s},
                   {"skipped_steps", trained->skipped_steps},
                   {"images_dropped", trained->images_dropped},
                   {"bad_images", trained->bad_images},
                   {"peak_memory_bytes", trained->peak_memory_bytes}});
    fields.update(stages_of(trained->input));
    if (trained->grad_norm) fields["grad_norm"] = *trained->grad_norm;
  }
  if (const auto& validated = result.validated) {
    fields.update({{"val_loss", validated->loss},
                   {"val_top1", validated->top1},
                   {"val_top5", validated->top5},
                   {"validated_images", validated->images}});
    if (validated->rank) fields["validating_rank"] = *validated->rank;
  }
  if (const auto& average = result.validated_average)
    fields.update({{"val_loss_ema", average->loss},
                   {"val_top1_ema", average->top1},
                   {"val_top5_ema", average->top5}});
  return fields;
}

TrainingEnd train_epochs(const Run& run, long batches_per_epoch, BatchSource* validation,
                         const CheckpointSettings& checkpoints) {
  check_possible(run, batches_per_epoch);
  return Training(run, batches_per_epoch, checkpoints).run(validation);
}

namespace {

/// The logits of this rank's images, in its batches' order.
class Logits {
 public:
  explicit Logits(Engine& engine) : engine_(engine) {}

  /// Those of the last batch, padding included.
  void add_batch() {
    engine_.finish();  // waits with the timeout, download() without
    const ConstView logits = engine_.model.network().logits();
    const auto values =
        download<float>(engine_.device(), engine_.stream(), logits.data, logits.count);
    rows_.insert(rows_.end(), values.begin(), values.end());
  }

  /// Images x classes, on rank 0. Collective.
  std::vector<float> gather(std::size_t images) {
    const auto classes = static_cast<std::size_t>(engine_.settings().network.classes);
    const auto computing = static_cast<std::size_t>(engine_.step.ranks_computing());
    const auto first = static_cast<std::size_t>(engine_.step.first_computing());
    rows_.resize((images + computing - 1) / computing * classes);
    std::vector<float> all;
    if (engine_.host().rank() == 0) all.resize(rows_.size() * (first + computing));
    engine_.host().gather(ConstView(std::span<const float>(rows_)), View(std::span<float>(all)), 0,
                          engine_.stream());
    engine_.finish();
    if (all.empty()) return {};
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first * rows_.size()));
    return interleaved(all, images, classes, computing);
  }

 private:
  Engine& engine_;
  std::vector<float> rows_;
};

void write_logits(const std::string& path, std::vector<float> logits, const ImageSource& source) {
  Tensor labels{"labels", {static_cast<std::int64_t>(source.size())}, {}};
  for (std::size_t i = 0; i < source.size(); ++i) labels.integers.push_back(source.label(i));
  const auto images = static_cast<std::int64_t>(source.size());
  const auto classes = static_cast<std::int64_t>(logits.size()) / images;
  write_safetensors({"--logits", path}, {{"logits", {images, classes}, std::move(logits)}, labels});
}

std::string text_of(const Validation& v) {
  const auto share = [&](double part) {
    return fmt::format("{:.2f} % ({:.0f})", 100 * part, part * static_cast<double>(v.images));
  };
  return fmt::format("loss {:.4f}, top-1 {}, top-5 {} of {} images", v.loss, share(v.top1),
                     share(v.top5), v.images);
}

}  // namespace

std::optional<Validation> validate(Engine& engine, BatchSource& batches, const MpiSession& session,
                                   const std::function<bool()>& go_on) {
  bool goes_on = true;
  engine.model.with_common_weights([&] {
    Network& network = engine.model.network();
    network.zero_total_metrics();
    batches.start_epoch(0);
    // A server waits as long as the others work.
    const bool computes = engine.step.computes();
    const bool server_waits = engine.step.first_computing() > 0;
    const auto part = server_waits ? session.split(computes ? 0 : -1) : nullptr;
    while (goes_on && batches.load_next(network)) {
      if (computes) engine.model.evaluate();
      goes_on = go_on();
      if (part) part->progress();
    }
    engine.finish();
    if (server_waits) part ? session.barrier() : session.wait_idle();
  });
  if (!goes_on) return std::nullopt;
  const Metrics total = total_metrics(engine, session);
  const auto images = static_cast<double>(total.samples);
  Validation validated{total.loss_sum / images, static_cast<double>(total.top1) / images,
                       static_cast<double>(total.top5) / images, total.samples};
  if (engine.settings().strategy.norm_stats != "average")
    validated.rank = engine.step.first_computing();
  return validated;
}

ExitCode evaluate(const Run& run, BatchSource& batches, const ImageSource& source) {
  if (const std::string& seeded = run.engine.model.load_remarks().seeded; !seeded.empty())
    throw UsageError("--evaluate: " + seeded);
  const bool keeps = !run.options.logits.empty();
  Logits logits(run.engine);
  EpochResult result;
  result.validated = validate(run.engine, batches, run.session, [&] {
    if (keeps && run.engine.step.computes()) logits.add_batch();
    return true;
  });
  const Validation& validated = *result.validated;
  ENSURE(validated.images == static_cast<std::int64_t>(source.size()), "an image is missing");
  if (keeps) {
    const auto all = logits.gather(source.size());
    if (run.session.is_root()) write_logits(run.options.logits, all, source);
  }
  say(run.session, text_of(validated));
  run.write("epoch", merged(record_of(result), run.input()));
  if (!std::isfinite(validated.loss))
    throw FailError(
        fmt::format("--weights {}: the validation loss is not finite", run.options.model.weights));
  return ExitCode::pass;
}

std::vector<float> interleaved(const std::vector<float>& parts, std::size_t rows, std::size_t width,
                               std::size_t ranks) {
  const std::size_t rows_of_part = (rows + ranks - 1) / ranks;
  ENSURE(parts.size() == ranks * rows_of_part * width, "parts of equal length");
  std::vector<float> all(rows * width);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t at = row % ranks * rows_of_part + row / ranks;
    std::copy_n(parts.begin() + static_cast<std::ptrdiff_t>(at * width), width,
                all.begin() + static_cast<std::ptrdiff_t>(row * width));
  }
  return all;
}

}  // namespace shakedown::training
