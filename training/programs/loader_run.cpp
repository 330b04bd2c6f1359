#include "training/programs/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "training/data/pack.hpp"
#include "training/measure/records.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {
namespace {

struct LoaderRate {
  std::vector<double> images_per_s;  // per rank
  double seconds = 0;                // of the slowest rank
  InputTimes input;                  // over_ranks()

  double total() const { return std::accumulate(images_per_s.begin(), images_per_s.end(), 0.0); }
};

/// At least what is made ahead, which comes at another rate.
int warmup_of(const TrainOptions& options) {
  return std::max(options.timing.warmup, options.data.prefetch + kLoadedBatchesHeld);
}

/// The batches of the epochs, one after another, each on the device when this returns.
void take(BatchSource& batches, int count, int& epoch, Progress& progress) {
  for (int i = 0; i < count;) {
    if (batches.next())
      progress.update(++i);
    else
      batches.start_epoch(++epoch);
  }
}

LoaderRate measure(TrainingData& data, const TrainOptions& options, int batch_size,
                   const Backend& backend, Stream& stream, const MpiSession& session) {
  BatchSource& batches = data.training();
  const bool computes = find_strategy(options.strategy.strategy).computes(session.rank());
  const auto arrived = backend.device->make_event();
  int epoch = 0;
  const auto take_and_wait = [&](const char* title, int count) {
    Progress progress(title, count, "batches", session.is_root());
    if (computes) take(batches, count, epoch, progress);
    arrived->record(stream);
    backend.world->wait(*arrived, HostWait::timed);
  };
  batches.start_epoch(epoch);
  session.barrier();
  take_and_wait("warm-up", warmup_of(options));
  // No barrier here: the batches made ahead meanwhile would count.
  const InputTimes before = batches.times();
  const auto start = std::chrono::steady_clock::now();
  take_and_wait("loader", options.timing.iterations);
  const std::chrono::duration<double> mine = std::chrono::steady_clock::now() - start;
  const double images = computes ? static_cast<double>(options.timing.iterations) * batch_size : 0;
  LoaderRate rate;
  rate.input = over_ranks(batches.times() - before, session);
  rate.images_per_s = session.all_gather(images / mine.count());
  const auto seconds = session.all_gather(mine.count());
  rate.seconds = *std::max_element(seconds.begin(), seconds.end());
  return rate;
}

std::string text_of_stages(const InputTimes& input) {
  if (input.images == 0) return "no image was read in the timed batches";
  const auto us = [&](double seconds) { return 1e6 * seconds / input.images; };
  std::string text = fmt::format(
      "{:.0f} us to open, {:.0f} to read, {:.0f} to decode, {:.0f} to augment (worker time per "
      "image); {:.1f} to copy",
      us(input.open_s), us(input.read_s), us(input.decode_s), us(input.augment_s),
      us(input.copy_s));
  if (input.device_images > 0)
    text += fmt::format(", {:.1f} to decode on the device, which got {:.1f} % of the images",
                        us(input.device_decode_s), 100 * input.device_images / input.images);
  return text;
}

std::string summary_of(const LoaderRate& rate) {
  const auto [least, most] =
      std::minmax_element(rate.images_per_s.begin(), rate.images_per_s.end());
  std::string total = fmt::format("{:.1f} total", rate.total());
  if (rate.images_per_s.size() > 1)
    total += fmt::format(", {:.1f} to {:.1f} per rank", *least, *most);
  return labelled("images/s", total) + labelled("stages", text_of_stages(rate.input));
}

Json record_of(const LoaderRate& rate, const TrainOptions& options) {
  return merged({{"images_per_s", rate.total()},
                 {"images_per_s_per_rank", rate.images_per_s},
                 {"iterations", options.timing.iterations},
                 {"warmup", warmup_of(options)},
                 {"input_stall_ms", 1e3 * rate.input.stall_s}},
                stages_of(rate.input));
}

}  // namespace

ExitCode run_loader(const TrainOptions& options, const Dataset& dataset, const Backend& backend,
                    const MpiSession& session, Record& record) {
  const EngineSettings step = engine_settings(options, backend, dataset.classes());
  const NetworkSettings& shape = step.network;
  const auto stream = backend.device->make_stream();
  say(session, wrapped(fmt::format("loader: batch {} per rank, {}x{} pixels, {}", shape.batch_size,
                                   shape.image_size, shape.image_size, dataset.summary()),
                       2) +
                   "\n" + wrapped(text_of_machine(backend, session.hosts()), 2));
  TrainingData data(options.data, dataset, step, backend, *stream);
  say(session, data.remark(static_cast<long>(options.timing.iterations) + warmup_of(options)));
  const LoaderRate rate = measure(data, options, shape.batch_size, backend, *stream, session);
  const Json what{{"backend", name_of(backend.kind)},   {"data", dataset.name()},
                  {"image_size", shape.image_size},     {"batch_size", shape.batch_size},
                  {"world_size", session.world_size()}, {"prefetch", options.data.prefetch}};
  record.write("loader", merged(merged(what, record_of(data.setup())), record_of(rate, options)));
  say(session, summary_of(rate));
  say(session, data.bad_images_text());
  return ExitCode::pass;
}

ExitCode pack_images(const TrainOptions& options, MpiSession& session) {
  set_timeout(session, options.backend);
  if (!session.is_root()) {
    session.wait_idle();
    return ExitCode::pass;
  }
  std::vector<int> others(static_cast<std::size_t>(session.world_size() - 1));
  std::iota(others.begin(), others.end(), 1);
  const Output output{"--pack", options.pack};
  check_writable(output);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(options.pack, ignored) &&
      std::filesystem::file_size(options.pack, ignored) > 0 && !is_packed_file(options.pack))
    throw UsageError(
        fmt::format("--pack {}: this file exists and is no packed file: remove it, or name another",
                    options.pack));
  const auto source = open_images("--train-dir", options.data.train_dir);
  say(session, text_of(*source));
  const int workers =
      workers_of(options.data, static_cast<int>(std::thread::hardware_concurrency()));
  Progress progress("packing", static_cast<long>(source->size()), "images", true);
  const Packed packed = write_pack(*source, output, workers, [&](std::size_t images) {
    progress.update(static_cast<long>(images));
    session.progress(others);
  });
  say(session, fmt::format("{}: {}", options.pack, text_of(packed)));
  session.barrier();
  return ExitCode::pass;
}

}  // namespace shakedown::training
