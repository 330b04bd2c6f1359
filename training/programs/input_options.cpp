#include "training/programs/input_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/options.hpp"

namespace shakedown::training {
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
