// What makes a step fast, or lean, leaves what it computes as it was: graphs, fusion, recomputing.
#include <fmt/format.h>

#include <numeric>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/network.hpp"
#include "tests/support/strategies.hpp"
#include "training/measure/breakdown.hpp"
#include "training/measure/throughput.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

constexpr int kGraphSteps = 4;

EngineSettings graph_settings(const StrategyOptions& strategy, Precision precision,
                              int accumulate) {
  EngineSettings settings = test::settings_of(precision, "");
  settings.network.image_size = 64;
  settings.network.tuning.deterministic = true;
  settings.strategy = strategy;
  settings.accumulate = accumulate;
  return settings;
}

/// Every strategy whose step can be a graph, and what else changes which streams take part.
std::vector<StrategyOptions> capturable_strategies() {
  std::vector<StrategyOptions> list;
  const auto add = [&](const std::string& name, auto&& change) {
    StrategyOptions options = test::small_buckets_of(name);
    change(options);
    list.push_back(options);
  };
  for (const StrategyEntry& entry : strategies()) {
    if (!entry.capturable || test::session().world_size() < entry.ranks.least) continue;
    add(entry.name, [](auto&) {});
    if (entry.overlaps()) add(entry.name, [](auto& o) { o.no_overlap = true; });
    if (entry.any_type) add(entry.name, [](auto& o) { o.grad_dtype = "fp16"; });
  }
  add("ddp", [](auto& o) { o.norm_stats = "broadcast"; });
  return list;
}

/// Strategies, precisions and micro-batches; one of them where there are no graphs.
std::vector<EngineSettings> cases(BackendKind backend) {
  std::vector<EngineSettings> list;
  if (backend == BackendKind::cpu) {
    if (test::session().world_size() == 2) list.push_back(graph_settings({}, Precision::fp32, 2));
    return list;
  }
  for (const StrategyOptions& strategy : capturable_strategies()) {
    for (int accumulate : {1, 2})
      list.push_back(graph_settings(strategy, Precision::fp32, accumulate));
    list.push_back(graph_settings(strategy, Precision::fp16, 1));
  }
  return list;
}

/// An engine with a batch of its own on each rank.
struct GraphRig {
  GraphRig(const EngineSettings& settings, Backend& backend) : engine(settings, backend) {
    engine.allocate(test::session().local_size());
    batches = make_synthetic_batches(engine.device(), engine.stream(), settings.network,
                                     static_cast<std::uint64_t>(test::session().rank()) + 1);
  }
  void train(int steps) {
    EndlessBatches endless(*batches);
    for (int i = 0; i < steps; ++i)
      engine.step.run([&](int) { endless.load_next(engine.model.network()); },
                      i < steps / 2 ? 1e-3 : 5e-4);
  }

  Engine engine;
  std::unique_ptr<BatchSource> batches;
};

struct GraphOutcome {
  std::vector<float> weights, restarted, statistics;  // after some steps; and from the start again
  Traffic traffic;
  StepScalars scalars;
  std::string tracked;
  long graphs = 0;
};

GraphOutcome outcome_of(const EngineSettings& settings, Backend& backend) {
  GraphRig rig(settings, backend);
  Engine& engine = rig.engine;
  GraphOutcome out;
  const Traffic before = backend.world->traffic();
  rig.train(kGraphSteps);
  engine.finish();
  out.traffic = backend.world->traffic() - before;
  out.weights = engine.model.master_weights();
  out.scalars = engine.model.read_scalars();
  for (const Tensor& tensor : engine.model.state())
    if (tensor.name == "bn1.num_batches_tracked")
      out.tracked = fmt::format("{}", tensor.integers[0]);
  const View statistics = engine.model.network().weights().statistics();
  out.statistics =
      download<float>(engine.device(), engine.stream(), statistics.data, statistics.count);
  engine.step.exchange_alone();  // without a graph, between graphs
  engine.model.restart();
  rig.train(kGraphSteps);
  out.restarted = engine.model.master_weights();
  out.graphs = engine.step.graph_steps();
  return out;
}

/// Sums of more than two addends depend on their order, which NCCL may choose otherwise in a graph.
void check_same(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  if (test::session().world_size() <= 2)
    CHECK(a == b);
  else
    CHECK(test::relative_error(a, b) < 1e-3);
}

/// Which pieces a step has, without their times.
std::vector<std::string> pieces_of(const TracedStep& step) {
  std::vector<std::string> pieces;
  for (const StepSegment& s : step.segments)
    pieces.push_back(fmt::format("{} {}", name_of(s.phase), s.block));
  for (const Exchanged& e : step.exchanges) pieces.push_back(fmt::format("{} {}", e.what, e.bytes));
  return pieces;
}

void check_times(const TracedStep& step) {
  constexpr double kTick_ms = 2e-3;  // of the events
  double now = step.begin_ms;
  for (const StepSegment& s : step.segments) {
    CHECK(s.begin_ms == now);
    CHECK(s.end_ms >= s.begin_ms - kTick_ms);
    now = s.end_ms;
  }
  CHECK(step.end_ms == now);
  CHECK(step.ms() > 0);
  for (const Exchanged& e : step.exchanges) {
    CHECK(e.ready_ms >= step.begin_ms - kTick_ms);
    CHECK(e.begin_ms >= e.ready_ms - kTick_ms);
    CHECK(e.end_ms >= e.begin_ms - kTick_ms);
    CHECK(e.end_ms <= step.end_ms + kTick_ms);
    CHECK(e.launch_ms <= e.end_ms);
  }
}

const Architecture kSmallBottlenecks{"resnet26", true, {2, 2, 2, 2}};

EngineSettings settings_of(const Architecture& architecture, Precision precision, int size) {
  EngineSettings settings;
  settings.network.architecture = architecture;
  settings.network.batch_size = 32;
  settings.network.image_size = size;
  settings.network.classes = 10;
  settings.network.precision = precision;
  settings.network.tuning.autotune = false;
  settings.strategy.strategy = "none";
  settings.seed = 3;
  return settings;
}

/// A run from the start on one batch: the gradients of its first step, unscaled, and every loss.
struct Run {
  std::vector<Tensor> gradients;
  std::vector<double> losses;
  std::vector<float> weights;
};
Run run(const EngineSettings& settings, int steps, double learning_rate) {
  Backend backend = test::open_backend_of(BackendKind::gpu);
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  const NetworkSettings& n = settings.network;
  const auto size = static_cast<std::size_t>(n.image_size);
  const auto count = static_cast<std::size_t>(n.batch_size);
  const auto images = test::random_values(count * 3 * size * size, 5);
  std::vector<std::int32_t> labels(count);
  std::iota(labels.begin(), labels.end(), 0);
  for (std::int32_t& label : labels) label %= n.classes;

  Run result;
  for (int i = 0; i < steps; ++i) {
    engine.step.run([&](int) { test::set_batch(engine.model.network(), images, labels); },
                    learning_rate);
    engine.finish();
    const Metrics step = engine.model.network().read_metrics().step;
    result.losses.push_back(step.loss_sum / static_cast<double>(step.samples));
    if (i > 0) continue;
    const float scale = scales_loss(n.precision) ? kInitialLossScale : 1.0F;
    result.gradients = test::gradients(engine.model.network());
    for (Tensor& tensor : result.gradients)
      for (float& value : tensor.values) value /= scale;
  }
  result.weights = engine.model.master_weights();
  return result;
}

std::vector<float> flat(const std::vector<Tensor>& tensors) {
  std::vector<float> all;
  for (const Tensor& t : tensors) all.insert(all.end(), t.values.begin(), t.values.end());
  return all;
}

double mean(std::vector<double>::const_iterator begin, std::vector<double>::const_iterator end) {
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

}  // namespace

TEST_CASE("steps that are graphs train as those that are not", "[graphs]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  Backend backend = test::open_backend_of(kind);
  for (EngineSettings settings : cases(kind)) {
    CAPTURE(name_of(kind), settings.strategy.strategy, name_of(settings.network.precision),
            settings.accumulate, settings.strategy.no_overlap, settings.strategy.grad_dtype,
            settings.strategy.norm_stats);
    const GraphOutcome graphs = outcome_of(settings, backend);
    settings.no_graph = "a test's wish";
    const GraphOutcome plain = outcome_of(settings, backend);
    // all but the very first, as a restart moves nothing
    CHECK(graphs.graphs == (kind == BackendKind::gpu ? 2 * kGraphSteps - 1 : 0));
    CHECK(plain.graphs == 0);
    CHECK(graphs.traffic.operations == plain.traffic.operations);
    CHECK(graphs.traffic.sent_bytes == Approx(plain.traffic.sent_bytes));
    CHECK(graphs.traffic.received_bytes == Approx(plain.traffic.received_bytes));
    CHECK(graphs.scalars.updates == plain.scalars.updates);
    CHECK(graphs.scalars.loss_scale == plain.scalars.loss_scale);
    CHECK(graphs.tracked == plain.tracked);
    CHECK(graphs.tracked == fmt::format("{}", kGraphSteps * settings.accumulate));
    check_same(graphs.weights, plain.weights);
    check_same(graphs.restarted, plain.restarted);
    check_same(graphs.statistics, plain.statistics);
    check_same(graphs.restarted, graphs.weights);
  }
}

TEST_CASE("steps that are graphs are traced as those that are not", "[graphs]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  Backend backend = test::open_backend_of(kind);
  for (EngineSettings settings : cases(kind)) {
    if (settings.network.precision != Precision::fp32) continue;
    CAPTURE(name_of(kind), settings.strategy.strategy, settings.accumulate,
            settings.strategy.no_overlap);
    std::vector<Trace> traces;
    for (bool graph : {true, false}) {
      settings.no_graph = graph ? "" : "a test's wish";
      GraphRig rig(settings, backend);
      const long before = rig.engine.step.graph_steps();
      traces.push_back(trace_steps(rig.engine, *rig.batches, 3, 1e-3, test::session()));
      // of each kind, all but the first
      CHECK(rig.engine.step.graph_steps() - before == (kind == BackendKind::gpu && graph ? 6 : 0));
      trace_exchange(rig.engine, 2, test::session());
    }
    for (std::size_t rank = 0; rank < traces[0].size(); ++rank) {
      REQUIRE(traces[0][rank].steps.size() == 3);
      REQUIRE(traces[1][rank].steps.size() == 3);
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(pieces_of(traces[0][rank].steps[i]) == pieces_of(traces[1][rank].steps[i]));
        check_times(traces[0][rank].steps[i]);
        check_times(traces[1][rank].steps[i]);
      }
    }
  }
}

TEST_CASE("a throughput says whether its steps were graphs, and counts their bytes", "[graphs]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  Backend backend = test::open_backend_of(kind);
  StrategyOptions strategy;
  EngineSettings settings = graph_settings(strategy, Precision::fp32, 1);
  std::vector<Throughput> measured;
  for (bool graph : {true, false}) {
    settings.no_graph = graph ? "" : "a test's wish";
    GraphRig rig(settings, backend);
    const std::string why = rig.engine.step.why_no_graph();
    CHECK(why == (kind == BackendKind::cpu ? "cpu has none" : graph ? "" : settings.no_graph));
    measured.push_back(measure_throughput(rig.engine, *rig.batches, {3, 3, 1e-3}, test::session()));
    CHECK(measured.back().graph == (kind == BackendKind::gpu && graph));
  }
  const std::vector<double> predicted = measured[0].sent.predicted;
  CHECK(measured[1].sent.predicted == predicted);
  for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
    const double counted = measured[0].sent.counted.at(rank);
    CHECK(measured[1].sent.counted.at(rank) == Approx(counted));
    CHECK(counted == Approx(predicted[rank]).epsilon(0.03));  // with padding
  }
}

TEST_CASE("a step in which the host takes part is no graph", "[graphs]") {
  if (test::session().world_size() == 1) return;
  const BackendKind kind = test::backends().back();
  Backend backend = test::open_backend_of(kind);
  StrategyOptions strategy;
  strategy.strategy = "parameter-server-async";
  GraphRig rig(graph_settings(strategy, Precision::fp32, 1), backend);
  CHECK_THAT(rig.engine.step.why_no_graph(),
             ContainsSubstring(kind == BackendKind::gpu ? strategy.strategy : "cpu"));
  rig.train(2);
  CHECK(rig.engine.step.graph_steps() == 0);
  strategy.strategy = "ddp";
  rig.engine.step.use_strategy(strategy);  // and back
  rig.engine.model.restart();
  CHECK(rig.engine.step.why_no_graph().empty() == (kind == BackendKind::gpu));
}

// What makes the GPU's step fast, or lean, leaves what it computes as it was.

GPU_TEST_CASE("timing ways to compute leaves weights and statistics as they were", "[fast]") {
  const Precision precision = GENERATE(Precision::fp32, Precision::fp16);
  auto settings = settings_of(kSmallBottlenecks, precision, 64);
  const auto at_the_start = [&](bool autotune) {
    settings.network.tuning.autotune = autotune;
    Backend backend = test::open_backend_of(BackendKind::gpu);
    Engine engine(settings, backend);
    engine.allocate(test::session().local_size());
    const View weights = engine.model.network().weights().compute();
    if (autotune && precision == Precision::fp16)
      CHECK(engine.model.network().fused().norms == 29);  // 1 + 8 * 3 + 4
    return std::pair(
        download<std::byte>(engine.device(), engine.stream(), weights.data, weights.bytes()),
        engine.model.statistics());
  };
  CHECK(at_the_start(true) == at_the_start(false));
}

GPU_TEST_CASE("activations are rebuilt to the last bit", "[fast]") {
  const Precision precision = GENERATE(Precision::fp32, Precision::fp16, Precision::bf16);
  const bool bottleneck = GENERATE(false, true);
  CAPTURE(name_of(precision), bottleneck);
  auto settings =
      settings_of(bottleneck ? kSmallBottlenecks : find_architecture("resnet18"), precision, 64);
  settings.network.tuning.deterministic = true;
  settings.network.tuning.fusion = GENERATE(Fusion::none, Fusion::gradients, Fusion::gram);
  const Run kept = run(settings, 3, 0.05);
  settings.network.recompute = true;
  const Run rebuilt = run(settings, 3, 0.05);
  CHECK(flat(rebuilt.gradients) == flat(kept.gradients));
  CHECK(rebuilt.weights == kept.weights);
}

GPU_TEST_CASE("deterministic steps repeat, and are then fused again", "[fast]") {
  auto settings = settings_of(kSmallBottlenecks, Precision::fp16, 64);
  settings.network.tuning.fusion = Fusion::statistics;
  Backend backend = test::open_backend_of(BackendKind::gpu);
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  CHECK(engine.model.network().fused().statistics == 28);  // all but the stem's
  const auto images = test::random_values(std::size_t{32} * 3 * 64 * 64, 5);
  const auto trained = [&] {
    engine.model.restart();
    for (int i = 0; i < 4; ++i)
      engine.step.run(
          [&](int) {
            test::set_batch(engine.model.network(), images, std::vector<std::int32_t>(32, 3));
          },
          0.05);
    return engine.model.master_weights();
  };
  const auto fused = trained();
  engine.step.set_repeatable(true);
  const auto once = trained();
  CHECK(trained() == once);
  CHECK(once != fused);
  engine.step.set_repeatable(false);
  CHECK(trained() != once);
}

// An untrained network amplifies small changes: float16's roundings alone change single tensors'
// gradients by tens of percent. So fused and unfused are both compared with float32, and fused must
// not be further from it.
GPU_TEST_CASE("gradients of the fused float16 step are as good as those of the unfused", "[fast]") {
  auto settings = settings_of(find_architecture("resnet50"), Precision::fp32, 96);
  const Run exact = run(settings, 1, 0.01);
  settings.network.precision = Precision::fp16;
  settings.network.tuning.fusion = Fusion::none;
  const Run unfused = run(settings, 1, 0.01);
  settings.network.tuning.fusion = Fusion::all;
  const Run fused = run(settings, 1, 0.01);

  double unfused_sum = 0;
  double fused_sum = 0;
  double worst = 0;
  std::string where;
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    const auto& wanted = exact.gradients[i].values;
    const double a = test::relative_error(unfused.gradients[i].values, wanted);
    const double f = test::relative_error(fused.gradients[i].values, wanted);
    unfused_sum += a;
    fused_sum += f;
    if (f <= worst) continue;
    worst = f;
    where = exact.gradients[i].name;
  }
  const auto tensors = static_cast<double>(exact.gradients.size());
  fmt::print(
      "float16 gradients against float32's: fused {:.1e} mean, {:.1e} worst ({}); unfused "
      "{:.1e} mean\n",
      fused_sum / tensors, worst, where, unfused_sum / tensors);
  CHECK(fused_sum < 1.25 * unfused_sum);
  CHECK(worst < 1);
  CHECK(fused.losses[0] == Approx(exact.losses[0]).epsilon(1e-2));
}

GPU_TEST_CASE("500 steps of the fused float16 step learn as those of the unfused", "[fast]") {
  auto settings = settings_of(kSmallBottlenecks, Precision::fp16, 64);
  settings.network.tuning.fusion = Fusion::none;
  const Run unfused = run(settings, 500, 0.002);
  settings.network.tuning.fusion = Fusion::all;
  const Run fused = run(settings, 500, 0.002);
  fmt::print("loss of 500 steps: fused {:.4f} -> {:.4f}, unfused {:.4f} -> {:.4f}\n",
             fused.losses.front(), fused.losses.back(), unfused.losses.front(),
             unfused.losses.back());
  for (std::ptrdiff_t window = 0; window < 500; window += 50) {
    CAPTURE(window);
    CHECK(mean(fused.losses.begin() + window, fused.losses.begin() + window + 50) ==
          Approx(mean(unfused.losses.begin() + window, unfused.losses.begin() + window + 50))
              .margin(0.03 * unfused.losses.front()));
  }
  CHECK(fused.losses.back() < 0.5 * fused.losses.front());
}

}  // namespace shakedown::training
