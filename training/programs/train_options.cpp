#include "training/programs/train_options.hpp"

#include <fmt/format.h>

#include "common/options.hpp"

namespace shakedown::training {
namespace {

constexpr int kMostSteps = 1'000'000'000;  // twice that is an int

/// A power limit's controller overshoots in the first second and then holds clocks down for as long
/// (measured on an H200: docs/engineering/fast-step.md).
constexpr double kGpuWarmupSeconds = 2;

}  // namespace

void declare_step_options(OptionSet& options, TrainOptions& values) {
  options.heading("Run");
  options.add("--iterations", values.iterations, "timed steps of the throughput run")
      .at_least(1)
      .at_most(kMostSteps)
      .not_with({"--epochs"}, "is of the throughput run");
  options.add("--warmup", values.warmup, "steps before the timed ones, at least")
      .at_least(1)
      .at_most(kMostSteps)
      .not_with({"--epochs"}, "is of the throughput run");
  options
      .add("--warmup-seconds", values.warmup_seconds,
           "seconds of steps before the timed ones, at least: a GPU's power limit settles under "
           "load only")
      .at_least(0)
      .not_with({"--epochs"}, "is of the throughput run")
      .default_text(fmt::format("{:g} on gpu, 0 on cpu", kGpuWarmupSeconds));
  options.add("--batch-size", values.batch_size, "images per rank and micro-batch").at_least(1);
  options
      .add("--global-batch", values.global_batch,
           "images an update over all ranks that compute and all --accumulate micro-batches, "
           "instead of --batch-size")
      .at_least(1)
      .default_text("none")
      .not_with({"--batch-size"}, "determines the batch per rank");
  options.add("--accumulate", values.accumulate, "micro-batches an update, gradients averaged")
      .at_least(1);
  options
      .add("--graph", values.graph,
           "auto: a step is a CUDA graph where device, transport and strategy can; off: the host "
           "asks for each of its operations")
      .one_of({"auto", "off"});
  options.add("--seed", values.seed, "of weights, order and augmentation");
  options
      .add("--certificate", values.certificate,
           "prove that the strategy computes what its reference does")
      .not_with({"--epochs", "--layers", "--kernels"}, "is of the throughput run");
  options.add("--record", values.record, "append what is measured to this .jsonl file");
  options.add("--trace", values.trace,
              "write a timeline of some steps to this file, for https://ui.perfetto.dev");
  declare_options(options, values.backend);
  declare_options(options, values.model);
  declare_options(options, values.strategy);
  options.heading("Gradient exchange");
  options
      .add("--throttle-gbs", values.backend.throttle_gbs,
           "exchanges take, besides their own time, what their bytes would at so many GB/s each "
           "way, to see what a slow network makes of them; 0: only their own")
      .at_least(0);
  options
      .add("--comm-ctas,--ctas", values.backend.ctas,
           "blocks NCCL's kernels may have, which take multiprocessors from what computes; 0: as "
           "NCCL likes")
      .at_least(0);
  declare_options(options, values.optimizer);
  options.heading("Data");
  options
      .add("--train-dir,--data-dir", values.data.train_dir,
           "folder with a sub-folder of images a class")
      .default_text("synthetic");
  options
      .add("--augment", values.data.augment,
           "auto: crop from 160 pixels on, else shift; both also flip")
      .one_of({"auto", "none", "shift", "crop"})
      .only_with({"--train-dir", "--val-dir"});
  options.add("--workers,--num-workers", values.data.workers, "loader threads per rank")
      .at_least(1)
      .at_most(1024)
      .only_with({"--train-dir", "--val-dir"});
  options.add("--prefetch", values.data.prefetch, "batches decoded ahead")
      .at_least(1)
      .at_most(1024)
      .only_with({"--train-dir", "--val-dir"});
}

void declare_options(OptionSet& options, TrainOptions& values) {
  declare_step_options(options, values);
  options.heading("Training");
  options
      .add("--epochs", values.epochs,
           "train this long instead, over --train-dir; 0 only evaluates --val-dir")
      .at_least(0)
      .default_text("none");
  options.add("--val-dir", values.data.val_dir, "as --train-dir, for validation after each epoch")
      .only_with({"--epochs"});
  declare_options(options, values.schedule);
  options.add("--save", values.save, "write the trained weights to this .safetensors file");
  options.add("--describe", values.describe,
              "print the network, its memory plan and its buckets, and end");
  const std::vector<std::string> others{"--epochs", "--save", "--trace", "--max-batch"};
  options
      .add("--layers", values.layers,
           "instead of the throughput run: time every call of up to 20 steps, and print each "
           "layer's time against what the device could do")
      .not_with(others, "measures calls alone");
  options
      .add("--kernels", values.kernels,
           "the same by kernel: time, bandwidth against a copy's, TFLOP/s")
      .not_with(others, "measures calls alone");
  options
      .add("--max-batch", values.max_batch,
           "the throughput run at the largest batch per rank that the memory holds")
      .not_with({"--epochs", "--batch-size", "--global-batch"},
                "is a throughput run at the batch that it finds");
  options
      .add("--max-batch-limit", values.max_batch_limit,
           "images per rank: --max-batch tries no more")
      .at_least(1)
      .default_text("4096 on cpu")
      .only_with({"--max-batch"});
}

double warmup_seconds_of(const TrainOptions& options, BackendKind kind) {
  if (options.warmup_seconds >= 0) return options.warmup_seconds;
  return kind == BackendKind::gpu ? kGpuWarmupSeconds : 0;
}

Augmentation augmentation_of(const TrainOptions& options) {
  const std::string& name = options.data.augment;
  if (name == "none") return Augmentation::none;
  if (name == "crop" || (name == "auto" && options.model.image_size >= 160))
    return Augmentation::resized_crop;
  return Augmentation::shift;
}

}  // namespace shakedown::training
