// Steps as graphs, compared with the same steps launched operation by operation.
#include <fmt/format.h>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/measure/breakdown.hpp"
#include "training/measure/throughput.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

constexpr int kSteps = 4;

EngineSettings settings_of(const StrategyOptions& strategy, Precision precision, int accumulate) {
  EngineSettings settings;
  settings.network.architecture = find_architecture("tiny");
  settings.network.batch_size = 8;
  settings.network.image_size = 64;
  settings.network.classes = 10;
  settings.network.precision = precision;
  settings.network.tuning.deterministic = true;
  settings.strategy = strategy;
  settings.accumulate = accumulate;
  settings.seed = 11;
  return settings;
}

/// Every strategy whose step can be a graph, and what else changes which streams take part.
std::vector<StrategyOptions> capturable_strategies() {
  std::vector<StrategyOptions> list;
  const auto add = [&](const std::string& name, auto&& change) {
    StrategyOptions options;
    options.strategy = name;
    options.small_bucket_mb = 0.125;
    options.bucket_cap_mb = 0.25;
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
    if (test::session().world_size() == 2) list.push_back(settings_of({}, Precision::fp32, 2));
    return list;
  }
  for (const StrategyOptions& strategy : capturable_strategies()) {
    for (int accumulate : {1, 2})
      list.push_back(settings_of(strategy, Precision::fp32, accumulate));
    list.push_back(settings_of(strategy, Precision::fp16, 1));
  }
  return list;
}

/// An engine with a batch of its own on each rank.
struct Rig {
  Rig(const EngineSettings& settings, Backend& backend) : engine(settings, backend) {
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

struct Outcome {
  std::vector<float> weights, restarted, statistics;  // after some steps; and from the start again
  Traffic traffic;
  StepScalars scalars;
  std::string tracked;
  long graphs = 0;
};

Outcome outcome_of(const EngineSettings& settings, Backend& backend) {
  Rig rig(settings, backend);
  Engine& engine = rig.engine;
  Outcome out;
  const Traffic before = backend.world->traffic();
  rig.train(kSteps);
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
  rig.train(kSteps);
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

}  // namespace

TEST_CASE("steps that are graphs train as those that are not", "[graphs]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  Backend backend = test::open_backend_of(kind);
  for (EngineSettings settings : cases(kind)) {
    CAPTURE(name_of(kind), settings.strategy.strategy, name_of(settings.network.precision),
            settings.accumulate, settings.strategy.no_overlap, settings.strategy.grad_dtype,
            settings.strategy.norm_stats);
    const Outcome graphs = outcome_of(settings, backend);
    settings.no_graph = "a test's wish";
    const Outcome plain = outcome_of(settings, backend);
    // all but the very first, as a restart moves nothing
    CHECK(graphs.graphs == (kind == BackendKind::gpu ? 2 * kSteps - 1 : 0));
    CHECK(plain.graphs == 0);
    CHECK(graphs.traffic.operations == plain.traffic.operations);
    CHECK(graphs.traffic.sent_bytes == Approx(plain.traffic.sent_bytes));
    CHECK(graphs.traffic.received_bytes == Approx(plain.traffic.received_bytes));
    CHECK(graphs.scalars.updates == plain.scalars.updates);
    CHECK(graphs.scalars.loss_scale == plain.scalars.loss_scale);
    CHECK(graphs.tracked == plain.tracked);
    CHECK(graphs.tracked == fmt::format("{}", kSteps * settings.accumulate));
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
      Rig rig(settings, backend);
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
  EngineSettings settings = settings_of(strategy, Precision::fp32, 1);
  std::vector<Throughput> measured;
  for (bool graph : {true, false}) {
    settings.no_graph = graph ? "" : "a test's wish";
    Rig rig(settings, backend);
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
  Rig rig(settings_of(strategy, Precision::fp32, 1), backend);
  CHECK_THAT(rig.engine.step.why_no_graph(),
             ContainsSubstring(kind == BackendKind::gpu ? strategy.strategy : "cpu"));
  rig.train(2);
  CHECK(rig.engine.step.graph_steps() == 0);
  strategy.strategy = "ddp";
  rig.engine.step.use_strategy(strategy);  // and back
  rig.engine.model.restart();
  CHECK(rig.engine.step.why_no_graph().empty() == (kind == BackendKind::gpu));
}

}  // namespace shakedown::training
