#include "training/programs/invariant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "common/options.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

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

}  // namespace

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

void divide_shards(TrainOptions& options, int ranks) {
  const int shards = options.strategy.invariant;
  if (shards == 0) return;
  if (shards % ranks != 0)
    throw UsageError(
        fmt::format("--invariant {}: its shards cannot be divided among {} ranks: 1, 2, 4 and so "
                    "on up to {} ranks are possible",
                    shards, ranks, shards));
  options.accumulate = shards / ranks;
}

std::string text_of_shards(const Engine& engine) {
  const EngineSettings& settings = engine.settings();
  if (settings.strategy.invariant == 0) return "";
  const Communicator& world = engine.world();
  const Network& network = engine.model.network();
  const auto sent_in = [&](DataType type) {
    const StepVolume volume = volume_of(network.table(), type, network.weights().type(), 1);
    return readable_bytes(
        engine.step.strategy_entry().bytes_sent(volume, world.size(), world.rank()));
  };
  return wrapped(
      fmt::format(
          "invariant: {} shards of {} images, {} per rank, summed in a fixed tree in fp32: "
          "{} sent per rank and update (an all-reduce of {}: {}); deterministic algorithms, "
          "without autotuning",
          settings.strategy.invariant, settings.network.batch_size, settings.accumulate,
          sent_in(engine.step.exchanged_type()), name_of(network.weights().type()),
          sent_in(network.weights().type())),
      2);
}

std::optional<double> rate_without_tree(const Run& run, TimingOptions timing) {
  constexpr int kSteps = 20;
  const StrategyOptions own = run.engine.settings().strategy;
  if (own.invariant == 0) return std::nullopt;
  StrategyOptions plain = own;
  plain.invariant = 0;
  timing.iterations = std::min(timing.iterations, kSteps);
  run.engine.step.use_strategy(plain);
  run.engine.model.restart();
  const Throughput measured = measure_throughput(run.engine, run.batches, timing, run.session);
  run.engine.step.use_strategy(own);
  run.engine.model.restart();
  return measured.images_per_s;
}

std::string text_of_tree_cost(const Throughput& measured, double rate_without) {
  return labelled("invariant",
                  fmt::format("{:+.1f} % images/s with the tree, compared with {:.1f} by plain "
                              "all-reduce with the same algorithms",
                              100 * (measured.images_per_s / rate_without - 1), rate_without));
}

}  // namespace shakedown::training
