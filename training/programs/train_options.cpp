#include "training/programs/train_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {

namespace {

constexpr const char* kUsage = R"(Usage: launch/mpi [-n RANKS] train [options]
       one rank per visible GPU, else two on the CPU; see launch/mpi --help

  launch/mpi train --record r.jsonl
  launch/mpi train --precision fp16 --batch-size 256 --strategy zero1
  launch/mpi train --data-dir DIR --epochs 90 --recipe torchvision-v1
)";

}  // namespace

void declare_step_options(OptionSet& options, TrainOptions& values) {
  options.heading("Run");
  declare_options(options, values.backend);
  declare_options(options, values.timing);
  options.add("--batch-size", values.batch_size, "images per rank and micro-batch")
      .at_least(1)
      .first();
  options
      .add("--global-batch", values.global_batch,
           "images per update over all ranks that compute and all micro-batches")
      .at_least(1)
      .default_text("none")
      .not_with({"--batch-size"});
  options.add("--accumulate", values.accumulate, "micro-batches per update; gradients are averaged")
      .at_least(1);
  options
      .add("--graph", values.graph,
           "auto: run each step as a CUDA graph where device, transport and strategy allow it; "
           "off: launch every kernel from the host")
      .one_of({"auto", "off"});
  options.add("--seed", values.seed, "random seed of weights, shuffling and augmentation");
  declare_options(options, values.model);
  declare_options(options, values.strategy);
  options
      .add("--throttle-gbs", values.backend.throttle_gbs,
           "emulate a slow network: delay each collective as a link of this bandwidth per "
           "direction would; 0: off")
      .at_least(0)
      .metavar("GB/S");
  options
      .add("--comm-ctas,--ctas", values.backend.ctas,
           "CTAs per NCCL kernel (sets NCCL_MIN_CTAS and NCCL_MAX_CTAS); each occupies an SM that "
           "compute then cannot use; 0: NCCL's default")
      .at_least(0);
  declare_options(options, values.optimizer);
  declare_options(options, values.ema);
  options.heading("Data");
  declare_options(options, values.data);
  options.heading("Output");
  options.add("--record", values.record, "append the measurements to this .jsonl file")
      .metavar("FILE")
      .first();
  options
      .add("--trace", values.trace,
           "write a timeline of some steps to this file, for https://ui.perfetto.dev")
      .metavar("FILE")
      .first();
  options.heading("Checks");
  options
      .add("--certificate", values.certificate,
           "compare the weights after each of three steps with all-reduce's, and check that each "
           "rank is in every averaged gradient once; exit code 1 where they differ by more than "
           "the printed tolerance")
      .not_with({"--epochs", "--evaluate", "--layers"});
}

namespace {

// A recipe is a file with one option and its value a line; lines that start with # are for people.

constexpr const char* kSuffix = ".recipe";

/// Next to the folder of the program, in the tree as when installed.
std::filesystem::path recipes() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path().parent_path() /
         "training/recipes";
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(recipes(), none))
    if (entry.path().extension() == kSuffix) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

/// Throws UsageError, which lists the names.
std::vector<std::string> lines_of_recipe(const std::string& name_or_file) {
  const std::filesystem::path named = recipes() / (name_or_file + kSuffix);
  std::error_code none;
  const bool known = std::filesystem::is_regular_file(named, none);
  std::ifstream file(known ? named : std::filesystem::path(name_or_file));
  if (!file)
    throw UsageError(fmt::format("--recipe {}: must be a file, or one of {}", name_or_file,
                                 fmt::join(recipe_names(), ", ")));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (lines.empty())
    throw UsageError(
        fmt::format("--recipe {}: is {}", name_or_file,
                    std::filesystem::is_directory(name_or_file, none) ? "a folder" : "empty"));
  return lines;
}

std::vector<std::string> arguments_of_recipe(const std::string& name_or_file) {
  std::vector<std::string> arguments;
  for (const std::string& line : lines_of_recipe(name_or_file)) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.starts_with("--recipe"))
        throw UsageError(fmt::format("--recipe {}: names another recipe", name_or_file));
      arguments.push_back(word);
    }
  }
  return arguments;
}

/// Those that are installed, with what they tell people.
std::string list_recipes() {
  std::string text;
  for (const std::string& name : recipe_names()) {
    text += (text.empty() ? "" : "\n") + name + "\n";
    for (const std::string& line : lines_of_recipe(name))
      if (line.starts_with("#")) text += "  " + line.substr(line.starts_with("# ") ? 2 : 1) + "\n";
  }
  return text;
}

void declare_recipes(OptionSet& options, std::string& recipe) {
  options
      .add("--recipe", recipe,
           "options of a published training as defaults: a name of --help recipes, or a file with "
           "one option per line")
      .metavar("NAME|FILE")
      .default_text("none");
  options.help_topic("recipes", "the recipes with source and published accuracy", list_recipes);
  options.add_text("--list-recipes", "", list_recipes);  // in earlier versions
  options.add_defaults("--recipe", arguments_of_recipe);
}

void declare_evaluation(OptionSet& options, TrainOptions& values) {
  options
      .add("--evaluate", values.evaluate,
           "print loss, top-1 and top-5 of --weights on --val-dir, in place of the throughput run")
      .not_with({"--epochs", "--save", "--trace"})
      .uses_only(
          {"--batch-size", "--global-batch",    "--accumulate", "--record",        "--backend",
           "--timeout",    "--model",           "--weights",    "--image-size",    "--classes",
           "--precision",  "--label-smoothing", "--autotune",   "--deterministic", "--fusion",
           "--recompute",  "--plan-cache",      "--strategy",   "--no-overlap",    "--throttle-gbs",
           "--comm-ctas",  "--data-dir",        "--val-dir",    "--augment",       "--val-resize",
           "--workers",    "--prefetch",        "--logits",     "--describe",      "--recipe"});
  options
      .add(
          "--logits", values.logits,
          "write the logits (images x classes, in the order of the sorted files) and the labels to "
          "this .safetensors file")
      .only_with({"--evaluate"})
      .metavar("FILE");
}

constexpr int kMostShards = 1024;

/// What the bits depend on is fixed.
void settle(TrainOptions& values) {
  const int shards = values.strategy.invariant;
  if (shards == 0) return;
  if (!std::has_single_bit(static_cast<unsigned>(shards)))
    throw UsageError(fmt::format("--invariant {}: must be a power of two, such as {}", shards,
                                 std::bit_floor(static_cast<unsigned>(shards))));
  values.strategy.strategy = "all-reduce";
  values.model.deterministic = true;
  values.backend.cpu_threads = 1;  // oneDNN's sums depend on their number
  // auto depends on the cores per rank, and decoders differ in the last bit
  if (values.data.decoder == "auto") values.data.decoder = "cpu";
  // steps for a time are more where they are shorter: on more ranks
  if (values.timing.warmup_seconds < 0) values.timing.warmup_seconds = 0;
  tuning_of(values.model);  // refuses --fusion that is not deterministic
}

/// --invariant: a training whose bits do not depend on the number of ranks. Sets those of the other
/// options that it decides.
void declare_invariant(OptionSet& options, TrainOptions& values) {
  options
      .add("--invariant", values.strategy.invariant,
           "train with the same bits on any number of ranks that divides N, a power of two: "
           "--batch-size images in each of N shards per update, batch norm per shard, gradients "
           "summed over the shards in one fixed tree in fp32; with --deterministic, one thread per "
           "rank on the cpu backend, --decoder cpu unless nvjpeg is given, and --warmup 20,0s "
           "unless given; prints its cost")
      .at_least(1)
      .at_most(kMostShards)
      .default_text("off")
      .not_with({"--strategy", "--accumulate", "--grad-dtype", "--bucket-cap-mb",
                 "--small-bucket-mb", "--bucket-order", "--no-overlap", "--norm-stats",
                 "--autotune", "--max-batch", "--evaluate", "--loader-only"});
  options.check([&] { settle(values); });
}

void check_inputs(const TrainOptions& options) {
  if (options.epochs > 0 && options.data.synthetic())
    throw UsageError(fmt::format("--epochs {} needs --data-dir or --train-dir", options.epochs));
  if (!options.evaluate) return;
  if (options.model.weights.empty()) throw UsageError("--evaluate needs --weights");
  if (options.data.val_dir.empty() && options.data.data_dir.empty())
    throw UsageError("--evaluate needs --data-dir or --val-dir");
}

}  // namespace

void declare_options(OptionSet& options, TrainOptions& values) {
  options.usage(kUsage);
  declare_step_options(options, values);
  options.heading("Run");
  options
      .add("--epochs", values.epochs,
           "train on the data for this many epochs, in place of the throughput run")
      .at_least(1)
      .default_text("none")
      .first();
  declare_recipes(options, values.recipe);
  declare_evaluation(options, values);
  options
      .add("--max-batch,--max-batch-limit", values.max_batch,
           "throughput run at the largest batch per rank that the memory holds, or of up to N")
      .at_least(1)
      .alone(std::to_string(kMostBatch))
      .metavar("[N]")
      .default_text("off")
      .not_with({"--epochs", "--evaluate", "--batch-size", "--global-batch"});
  declare_options(options, values.schedule);
  options.heading("Data");
  options
      .add("--val-dir", values.data.val_dir,
           "folder or packed file of images to validate on after each epoch, with the classes of "
           "the training folder")
      .only_with({"--epochs", "--evaluate"})
      .metavar("DIR");
  declare_validation_options(options, values.data.transform);
  options
      .add("--pack", values.pack,
           "write the training folder as one packed file, which --train-dir or --val-dir then "
           "reads, and exit")
      .only_with({"--data-dir", "--train-dir"})
      .not_with({"--epochs", "--evaluate", "--describe", "--layers", "--loader-only", "--max-batch",
                 "--record", "--save", "--trace"})
      .uses_only({"--backend", "--data-dir", "--train-dir", "--workers", "--timeout"})
      .metavar("FILE");
  options
      .add("--loader-only", values.loader_only,
           "measure the rate at which training batches reach the device, without a network, "
           "in place of the throughput run")
      .only_with({"--data-dir", "--train-dir"})
      .not_with(
          {"--epochs", "--evaluate", "--save", "--trace", "--max-batch", "--layers", "--describe"})
      .uses_only({"--iterations", "--warmup", "--batch-size", "--global-batch", "--accumulate",
                  "--seed", "--record", "--backend", "--timeout", "--image-size", "--strategy",
                  "--data-dir", "--train-dir", "--max-bad-images", "--augment", "--workers",
                  "--prefetch", "--decoder", "--recipe"});
  declare_options(options, values.checkpoints);
  options.heading("Output");
  options.refuse("--history", "results/report --history FILE writes it from the record");
  options.refuse("--mllog", "results/report --mllog FILE writes it from the record");
  options.add("--save", values.save, "write the trained weights to this .safetensors file")
      .metavar("FILE");
  options
      .add("--describe", values.describe,
           "print the network, its memory plan and its buckets, and exit")
      .first();
  options
      .add("--layers,--kernels", values.layers,
           "time every call of up to 20 steps, in place of the throughput run, and record the "
           "time of each layer and kernel, its TFLOP/s and its bandwidth relative to a copy, of "
           "which results/report --verbose makes tables")
      .not_with({"--epochs", "--evaluate", "--save", "--trace", "--max-batch"});
  options.heading("Checks");
  options
      .add("--self-test", values.self_test,
           "test gradient exchange and training with a small network on generated images, in under "
           "a minute; PASS needs two ranks, as one exchanges nothing; exit code 1: "
           "FAIL, 3: INCONCLUSIVE")
      .not_with({"--epochs", "--evaluate", "--pack", "--describe", "--layers", "--loader-only",
                 "--max-batch"})
      .uses_only({"--backend", "--precision", "--strategy", "--seed", "--graph", "--record",
                  "--timeout", "--deterministic"})
      .first();
  declare_invariant(options, values);
  declare_options(options, values.detector);
  options.check([&] {
    check_inputs(values);
    if (values.epochs > 0)
      check_schedule(values.schedule, values.optimizer.learning_rate, values.epochs);
  });
}

void find_data(TrainOptions& options) {
  DataOptions& data = options.data;
  const bool validates = options.evaluate || options.epochs > 0;
  find_data(data, !options.evaluate, validates);
  if (!validates) data.val_dir.clear();  // which --ignore-idle leaves
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(data.data_dir) / "train";
  if (!options.pack.empty() && !data.data_dir.empty() &&
      std::filesystem::is_directory(folder, ignored))
    data.train_dir = folder.string();  // not the pack that was made of it before
}

int batch_size_of(const StepOptions& options, int ranks) {
  if (options.global_batch == 0) return options.batch_size;
  const long parts = static_cast<long>(ranks) * options.accumulate;
  if (options.global_batch % parts != 0)
    throw UsageError(fmt::format(
        "--global-batch {}: not a multiple of {} ({})", options.global_batch, parts,
        options.strategy.invariant > 0
            ? fmt::format("--invariant {}", options.strategy.invariant)
            : fmt::format("the {} rank{} that compute{} x --accumulate {}", ranks,
                          ranks == 1 ? "" : "s", ranks == 1 ? "s" : "", options.accumulate)));
  return static_cast<int>(options.global_batch / parts);
}

void divide_shards(TrainOptions& options, int ranks) {
  const int shards = options.strategy.invariant;
  if (shards == 0) return;
  if (shards % ranks != 0)
    throw UsageError(fmt::format(
        "--invariant {}: its shards cannot be divided among {} ranks: a power of two of "
        "ranks up to {} is possible",
        shards, ranks, shards));
  options.accumulate = shards / ranks;
}

EngineSettings engine_settings(const StepOptions& options, const Backend& backend, int classes) {
  const StrategyEntry& strategy = find_strategy(options.strategy.strategy);
  const int ranks = std::max(1, strategy.computing(backend.world->size()));
  EngineSettings settings;
  static_cast<StepOptions&>(settings) = options;
  settings.network = {find_architecture(options.model.model),
                      batch_size_of(options, ranks),
                      options.model.image_size,
                      classes,
                      parse_precision(options.model.precision, backend.kind),
                      static_cast<float>(options.model.label_smoothing),
                      options.model.recompute,
                      tuning_of(options.model)};
  if (options.graph == "off") settings.no_graph = "--graph off";
  return settings;
}

}  // namespace shakedown::training
