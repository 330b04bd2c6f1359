#include "training/programs/evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/options.hpp"
#include "common/program.hpp"
#include "resnet/tensor_file.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/records.hpp"

namespace shakedown::training {
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

void declare_options(OptionSet& options, EvaluationOptions& values) {
  options
      .add("--evaluate", values.evaluate,
           "print loss, top-1 and top-5 of --weights on --val-dir, in place of the throughput run")
      .not_with({"--epochs", "--save", "--trace"})
      .uses_only({"--batch-size",   "--global-batch",  "--accumulate", "--record",
                  "--backend",      "--timeout",       "--model",      "--weights",
                  "--image-size",   "--classes",       "--precision",  "--label-smoothing",
                  "--autotune",     "--deterministic", "--fusion",     "--recompute",
                  "--plan-cache",   "--strategy",      "--no-overlap", "--comm-priority",
                  "--throttle-gbs", "--comm-ctas",     "--data-dir",   "--train-dir",
                  "--val-dir",      "--cache",         "--exif",       "--augment",
                  "--val-resize",   "--workers",       "--prefetch",   "--logits",
                  "--describe",     "--recipe"});
  options
      .add(
          "--logits", values.logits,
          "write the logits (images x classes, in the order of the sorted files) and the labels to "
          "this .safetensors file")
      .only_with({"--evaluate"})
      .metavar("FILE");
}

Metrics total_metrics(Engine& engine, const MpiSession& session) {
  const Metrics mine = engine.model.network().read_metrics().total;
  Metrics all;
  for (const Metrics& of_rank : session.all_gather(mine)) {
    all.loss_sum += of_rank.loss_sum;
    all.top1 += of_rank.top1;
    all.top5 += of_rank.top5;
    all.samples += of_rank.samples;
  }
  return all;
}

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
  return Validation{total.loss_sum / images, static_cast<double>(total.top1) / images,
                    static_cast<double>(total.top5) / images, total.samples,
                    engine.step.first_computing()};
}

ExitCode evaluate(const Run& run, BatchSource& batches, const ImageSource& source,
                  const EvaluationOptions& options) {
  if (const std::string& seeded = run.engine.model.load_remarks().seeded; !seeded.empty())
    throw UsageError("--evaluate: " + seeded);
  const bool keeps = !options.logits.empty();
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
    if (run.session.is_root()) write_logits(options.logits, all, source);
  }
  say(run.session, text_of(validated));
  run.write("epoch", merged(record_of(result), record_of(run.input)));
  if (!std::isfinite(validated.loss))
    throw FailError(fmt::format("--weights {}: the validation loss is not finite",
                                run.engine.settings().weights_file));
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
