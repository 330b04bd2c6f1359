// Running statistics of several ranks: whose they are, and when they are exchanged.
#include <algorithm>
#include <map>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"

namespace shakedown::training {

using test::load;
using test::settings_of;

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
TEST_CASE("what is saved has the first rank's running statistics, or their average",
          "[strategies]") {
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
  const std::size_t at =
      table.statistics()[static_cast<std::size_t>(table.statistic("bn1"))].offset;
  CHECK(mean->values.front() == common[at]);
}

TEST_CASE("running statistics are exchanged once an update of several micro-batches",
          "[strategies]") {
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

}  // namespace shakedown::training
