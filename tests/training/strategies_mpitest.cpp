// Steps of several ranks compared with those of one process.

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "training/exchange/strategy.hpp"
#include "training/measure/throughput.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

using test::Case;
using test::cases;
using test::exchanging_strategies;
using test::image_size;
using test::kBatch;
using test::load;
using test::settings_of;
using test::small_buckets_of;

struct Trained {
  std::vector<float> start, one_step, three_steps;  // weights
  std::vector<float> average;                       // of them, where there is one
};

/// Trains three steps; `shard(micro_batch)` names what is loaded. Collective where the strategy
/// exchanges.
template <class Shard>
Trained train(const EngineSettings& settings, Backend& backend, Shard&& shard) {
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  Trained trained;
  trained.start = engine.model.master_weights();
  for (int step = 0; step < 3; ++step) {
    engine.step.run([&](int micro) { load(engine.model.network(), shard(micro), step); },
                    settings.optimizer.learning_rate);
    if (step == 0) trained.one_step = engine.model.master_weights();
  }
  trained.three_steps = engine.model.master_weights();
  if (engine.model.averages_weights()) {
    engine.model.with_average_weights([&] { trained.average = engine.model.master_weights(); });
    CHECK(engine.model.master_weights() == trained.three_steps);
  }
  for (int block = 0; block < engine.model.network().blocks(); ++block)
    for (const Range& gap : engine.model.network().table().gaps(block))
      for (std::size_t i = gap.begin; i < gap.end; ++i) REQUIRE(trained.three_steps[i] == 0);
  if (engine.step.strategy_entry().ranks_agree) check_ranks_agree(engine, test::session(), "here");
  return trained;
}

/// |a - b| / |b - start|: 0 is equal, 1 is a difference as large as training's.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b,
                           const std::vector<float>& start) {
  double differs = 0;
  double moved = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    const double movement = static_cast<double>(b[i]) - start[i];
    differs += difference * difference;
    moved += movement * movement;
    size += static_cast<double>(start[i]) * start[i];
  }
  REQUIRE(moved > 1e-12 * size);  // it has trained
  return std::isnan(differs) ? INFINITY : std::sqrt(differs / moved);
}

/// What is exchanged in 16 bits has their roundings, whatever it was computed in.
bool exact(const EngineSettings& settings) {
  const std::string& exchanged = settings.strategy.grad_dtype;
  return settings.network.precision == Precision::fp32 &&
         (exchanged == "auto" || exchanged == "fp32");
}

/// After one step only roundings differ; Adam's first step is the gradient's sign, which a rounding
/// can turn round where the gradient is nearly zero. Later it can turn a ReLU or a maximum round,
/// which moves gradients by a step of their own (float16: by up to 0.18, measured on 3 GPUs). An
/// exchange gone wrong is near 1.
void check_same(const Trained& a, const Trained& b, const EngineSettings& settings) {
  const bool fp32 = exact(settings);
  const bool sgd = !settings.optimizer.is_adam();
  CHECK(relative_difference(a.one_step, b.one_step, b.start) <
        (!fp32 ? (sgd ? 2e-2 : 0.1) : (sgd ? 2e-5 : 5e-3)));
  CHECK(relative_difference(a.three_steps, b.three_steps, b.start) < (fp32 ? 0.15 : 0.5));
  if (!a.average.empty()) {
    CHECK(relative_difference(a.average, b.average, b.start) < (fp32 ? 0.15 : 0.5));
    CHECK(a.average != a.three_steps);
  }
}

/// Of ddp, and of zero1 and all-reduce where they have them too, by what they are called.
std::vector<std::pair<std::string, StrategyOptions>> exchange_options(Precision precision) {
  std::vector<std::pair<std::string, StrategyOptions>> list;
  const auto add = [&](const std::string& strategy, const std::string& what, auto&& change) {
    StrategyOptions options = small_buckets_of(strategy);
    change(options);
    list.emplace_back(strategy + ", " + what, options);
  };
  for (const char* strategy : {"ddp", "zero1"})
    add(strategy, "small-last", [](auto& o) { o.bucket_order = "small-last"; });
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    if (type == std::string(name_of(precision))) continue;
    for (const char* strategy : {"ddp", "all-reduce"})
      add(strategy, type, [&](auto& o) { o.grad_dtype = type; });
  }
  add("ddp", "broadcast", [](auto& o) { o.norm_stats = "broadcast"; });
  return list;
}

}  // namespace

TEST_CASE("ranks with shards of their own equal a serial emulation of them", "[strategies]") {
  const Case c = GENERATE(from_range(cases()));
  const auto [optimizer, accumulate] =
      GENERATE(table<const char*, int>({{"sgd", 1}, {"adam", 2}, {"adamw", 1}, {"lars", 1}}));
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(c.backend);
  EngineSettings settings = settings_of(c.precision, "none");
  settings.optimizer.optimizer = optimizer;
  settings.optimizer.learning_rate = 1e-3;
  if (settings.optimizer.needs_norms()) {   // of shards that cut parameters
    settings.optimizer.learning_rate = 10;  // times the trust ratio
    settings.optimizer.clip_grad_norm = 0.01;
    settings.ema.ema = 0.9;
  }

  // one process, the shards of all ranks that compute as micro-batches of one update
  std::map<int, Trained> alone;
  for (const StrategyOptions& strategy : exchanging_strategies(c.backend)) {
    CAPTURE(name_of(c.backend), name_of(c.precision), strategy.strategy, optimizer, accumulate);
    const StrategyEntry& entry = find_strategy(strategy.strategy);
    const int computing = entry.computing(session.world_size());
    if (alone.count(computing) == 0) {
      settings.strategy.strategy = "none";
      settings.accumulate = computing * accumulate;
      alone[computing] = train(settings, backend, [](int micro) { return micro; });
    }
    settings.strategy = strategy;
    settings.accumulate = accumulate;
    const int first = (session.rank() - (entry.computes(0) ? 0 : 1)) * accumulate;
    check_same(train(settings, backend, [&](int micro) { return first + micro; }),
               alone.at(computing), settings);
  }
}

TEST_CASE("each option of the exchange equals the serial emulation too", "[strategies]") {
  const Case c = GENERATE(from_range(cases()));
  constexpr int kAccumulate = 2;  // sums are formed before gradients are converted or copied
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(c.backend);
  EngineSettings settings = settings_of(c.precision, "none");
  settings.accumulate = session.world_size() * kAccumulate;
  const Trained alone = train(settings, backend, [](int micro) { return micro; });
  settings.accumulate = kAccumulate;
  for (const auto& [what, strategy] : exchange_options(c.precision)) {
    CAPTURE(name_of(c.backend), name_of(c.precision), what);
    settings.strategy = strategy;
    check_same(
        train(settings, backend, [&](int micro) { return session.rank() * kAccumulate + micro; }),
        alone, settings);
  }
}

TEST_CASE("a type that a strategy cannot exchange is named", "[strategies]") {
  if (test::session().world_size() == 1) return;  // some want two ranks
  Backend backend = test::open_backend_of(test::backends().front());
  for (const StrategyEntry& entry : strategies()) {
    CAPTURE(entry.name);
    EngineSettings settings = settings_of(Precision::fp32, entry.name);
    if (!test::can_run(entry, backend.kind)) {
      CHECK_THROWS_WITH(Engine(settings, backend), ContainsSubstring("only on the gpu backend"));
      continue;
    }
    settings.strategy.grad_dtype = "bf16";
    if (entry.any_type || entry.name == std::string("none"))
      CHECK(Engine(settings, backend).step.exchanged_type() ==
            (entry.any_type ? DataType::bfloat16 : DataType::float32));
    else
      CHECK_THROWS_WITH(Engine(settings, backend),
                        ContainsSubstring("--grad-dtype bf16") && ContainsSubstring(entry.name));
  }
}

TEST_CASE("workers that do not wait push as often, and no staler than they may", "[strategies]") {
  const Case c = GENERATE(from_range(cases()));
  const int bound = GENERATE(0, 2);
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  CAPTURE(name_of(c.backend), name_of(c.precision), bound);
  Backend backend = test::open_backend_of(c.backend);
  EngineSettings settings = settings_of(c.precision, "parameter-server-async");
  settings.strategy.staleness = bound;
  const int workers = session.world_size() - 1;
  constexpr int kSteps = 4;

  Engine engine(settings, backend);
  engine.allocate(session.local_size());
  const std::vector<float> start = engine.model.master_weights();
  for (int step = 0; step < kSteps; ++step)
    engine.step.run(
        [&](int) {
          // the first worker is slow, so that the others would run away
          if (session.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          load(engine.model.network(), session.rank() - 1, step);
        },
        settings.optimizer.learning_rate);
  const std::vector<float> end = engine.model.master_weights();
  CHECK(end != start);
  CHECK(std::all_of(end.begin(), end.end(), [](float w) { return std::isfinite(w); }));
  CHECK(engine.model.read_scalars().updates == (session.is_root() ? workers : 1) * kSteps);
  if (session.is_root()) {
    const std::vector<long> staleness = engine.step.strategy().staleness();
    CHECK(std::accumulate(staleness.begin(), staleness.end(), 0L) == workers * kSteps);
    // meanwhile each of the others may have pushed what it may be ahead, twice
    CHECK(staleness.size() <= 1 + static_cast<std::size_t>((workers - 1) * 2 * (bound + 1)));
    if (workers > 1) CHECK(staleness.size() > 1);  // someone was stale
  }

  // one worker alone is never stale: the synchronous server
  if (workers > 1) return;
  settings.strategy.strategy = "parameter-server";
  const Trained synchronous = train(settings, backend, [](int) { return 0; });
  settings.strategy.strategy = "parameter-server-async";
  check_same(train(settings, backend, [](int) { return 0; }), synchronous, settings);
}

// Adam's moments, corrected for their start, are those of one gradient however often it is pushed:
// the workers' steps, each of a share of the rate, add up to one step of a rank alone.
TEST_CASE("each push of workers that do not wait is a step of Adam's", "[strategies]") {
  if (test::session().world_size() < 3) return;  // with one worker it is the synchronous server
  const Case c = GENERATE(from_range(cases()));
  CAPTURE(name_of(c.backend), name_of(c.precision));
  Backend backend = test::open_backend_of(c.backend);
  EngineSettings settings = settings_of(c.precision, "none");
  settings.optimizer.optimizer = "adam";
  settings.optimizer.weight_decay = 0;
  const auto shard = [](int) { return 0; };
  const Trained alone = train(settings, backend, shard);
  settings.strategy.strategy = "parameter-server-async";
  settings.strategy.staleness = 0;  // every gradient of the first step is of the first weights
  const Trained pushed = train(settings, backend, shard);
  CHECK(relative_difference(pushed.one_step, alone.one_step, alone.start) <
        (c.precision == Precision::fp32 ? 5e-3 : 0.1));
}

TEST_CASE("a worker whose gradients overflow runs no farther ahead than others", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() < 3) return;
  for (const Case& c : cases()) {
    if (c.precision != Precision::fp16) continue;  // others do not look for overflows
    Backend backend = test::open_backend_of(c.backend);
    EngineSettings settings = settings_of(c.precision, "parameter-server-async");
    settings.strategy.staleness = 0;
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    constexpr int kSteps = 6;
    constexpr std::chrono::milliseconds kSlow{100};
    const auto start = std::chrono::steady_clock::now();
    session.barrier();  // the slow one starts after all have this time
    for (int step = 0; step < kSteps; ++step)
      engine.step.run(
          [&](int) {
            if (session.rank() == 1) std::this_thread::sleep_for(kSlow);
            auto images = test::random_values(kBatch * 3 * image_size() * image_size(), 1);
            if (session.rank() == 2) images[17] = INFINITY;
            test::set_batch(engine.model.network(), images, std::vector<std::int32_t>(kBatch, 3));
          },
          1e-3);
    engine.finish();
    if (session.rank() != 2) continue;
    CHECK(engine.model.read_scalars().skipped == kSteps);
    CHECK(std::chrono::steady_clock::now() - start > (kSteps - 2) * kSlow);
  }
}

// In float32 too, when it is exchanged in float16.
TEST_CASE("a float16 overflow on one rank is skipped by all", "[strategies]") {
  const MpiSession& session = test::session();
  const Case c = GENERATE(from_range(cases()));
  Backend backend = test::open_backend_of(c.backend);
  for (const StrategyEntry& entry : strategies()) {
    if (!entry.ranks_agree || entry.ranks.first_serves || entry.ranks.first_has_inputs) continue;
    if (c.precision != Precision::fp16 && !entry.any_type) continue;
    if (!test::can_run(entry, c.backend)) continue;
    CAPTURE(name_of(c.backend), name_of(c.precision), entry.name);
    EngineSettings settings = settings_of(c.precision, entry.name);
    if (c.precision != Precision::fp16) settings.strategy.grad_dtype = "fp16";
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    const auto start = engine.model.master_weights();
    engine.step.run(
        [&](int) {
          auto images = test::random_values(kBatch * 3 * image_size() * image_size(), 1);
          if (session.is_root()) images[17] = INFINITY;
          test::set_batch(engine.model.network(), images, std::vector<std::int32_t>(kBatch, 3));
        },
        0.1);
    const StepScalars scalars = engine.model.read_scalars();
    CHECK(scalars.skipped == 1);
    CHECK(scalars.updates == 0);
    CHECK(scalars.loss_scale == kInitialLossScale / 2);
    CHECK(engine.model.master_weights() == start);
  }
}

// Running statistics of several ranks: whose they are, and when they are exchanged.

TEST_CASE("running statistics are rank 0's before each forward, where requested", "[strategies]") {
  const MpiSession& session = test::session();
  const bool enabled = GENERATE(true, false);
  Backend backend = test::open_backend_of(test::backends().front());
  EngineSettings settings = settings_of(Precision::fp32, "ddp");
  if (enabled) settings.strategy.norm_stats = "broadcast";
  Engine engine(settings, backend);
  engine.allocate(session.local_size());
  const auto statistics = [&] {
    const View view = engine.model.network().weights().statistics();
    engine.finish();
    return download<float>(engine.device(), engine.stream(), view.data, view.count);
  };
  engine.step.run([&](int) { load(engine.model.network(), session.rank(), 0); }, 1e-3);
  const std::vector<float> own = statistics();
  std::vector<float> first = own;
  const View view{std::span<float>(first)};
  backend.host->broadcast(view, view, 0, engine.stream());
  if (session.rank() > 0) CHECK(own != first);  // each saw a shard of its own
  engine.step.exchange_alone();
  CHECK(statistics() == (enabled ? first : own));
}

// As timm's distribute_bn(reduce=True).
TEST_CASE("the saved statistics are the first rank's, or their average", "[strategies]") {
  const MpiSession& session = test::session();
  const bool average = GENERATE(true, false);
  const std::string strategy = GENERATE("ddp", "parameter-server");
  const StrategyEntry& entry = find_strategy(strategy);
  if (session.world_size() < entry.ranks.least) return;
  CAPTURE(average, strategy);
  Backend backend = test::open_backend_of(test::backends().front());
  EngineSettings settings = settings_of(Precision::fp32, strategy);
  if (average) settings.strategy.norm_stats = "average";
  Engine engine(settings, backend);
  engine.allocate(session.local_size());
  engine.step.run([&](int) { load(engine.model.network(), session.rank(), 0); }, 1e-3);
  const std::vector<float> own = engine.model.statistics();
  std::vector<float> wanted = own;
  const int root = entry.first_computing();
  if (average ? root > session.rank() : root != session.rank())
    std::fill(wanted.begin(), wanted.end(), 0.0F);
  const View sum{std::span<float>(wanted)};
  backend.host->all_reduce(sum, sum, Reduction::sum, engine.stream());
  if (average)
    for (float& value : wanted) value /= static_cast<float>(entry.computing(session.world_size()));

  std::vector<float> common;
  engine.model.with_common_weights([&] { common = engine.model.statistics(); });
  CHECK(test::relative_error(common, wanted) < 1e-6);
  CHECK(engine.model.statistics() == own);
  const std::vector<Tensor> state = engine.model.state();
  CHECK(engine.model.statistics() == own);
  const auto mean = std::find_if(state.begin(), state.end(), [](const Tensor& tensor) {
    return tensor.name == "bn1.running_mean";
  });
  REQUIRE(mean != state.end());
  const ParameterTable& table = engine.model.network().table();
  const std::size_t at = table.statistics()[table.statistic("bn1")].offset;
  CHECK(mean->values.front() == common[at]);
}

TEST_CASE("running statistics are exchanged once per update", "[strategies]") {
  Backend backend = test::open_backend_of(test::backends().front());
  std::map<bool, std::uint64_t> operations;
  for (const bool enabled : {false, true}) {
    EngineSettings settings = settings_of(Precision::fp32, "ddp");
    settings.accumulate = 3;
    if (enabled) settings.strategy.norm_stats = "broadcast";
    Engine engine(settings, backend);
    engine.allocate(test::session().local_size());
    const auto before = engine.world().traffic().operations;
    engine.step.run([&](int) { load(engine.model.network(), test::session().rank(), 0); }, 1e-3);
    engine.model.evaluate();  // exchanges none either
    engine.finish();
    operations[enabled] = engine.world().traffic().operations - before;
  }
  CHECK(operations[true] == operations[false] + 1);
}

// The table of strategies compared with the strategies themselves.

TEST_CASE("strategies have buckets where the table says so", "[volumes]") {
  if (test::session().world_size() == 1) return;  // some want two ranks
  Backend backend = test::open_backend_of(test::backends().front());
  for (const StrategyEntry& entry : strategies()) {
    if (!test::can_run(entry, backend.kind)) continue;
    CAPTURE(entry.name);
    const Engine engine(settings_of(Precision::fp32, entry.name), backend);
    CHECK(entry.bucketed() == !engine.step.plan().buckets.empty());
  }
}

}  // namespace shakedown::training
