// A training that continues from a checkpoint, with every strategy.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/checkpoint/snapshot.hpp"
#include "training/data/batches.hpp"

namespace shakedown::training {
namespace {

EngineSettings small_settings(const std::string& strategy, const std::string& optimizer) {
  EngineSettings settings = test::small_settings(strategy);
  settings.network.tuning.deterministic = true;
  settings.optimizer.optimizer = optimizer;
  settings.optimizer.learning_rate = 0.01;
  return settings;
}

/// Another batch at every update and on every rank.
void train(Engine& engine, int from, int to) {
  const auto rank = static_cast<std::uint64_t>(engine.world().rank());
  for (int update = from; update < to; ++update) {
    const auto batches =
        make_synthetic_batches(engine.device(), engine.stream(), engine.settings().network,
                               derive_seed(static_cast<std::uint64_t>(update), rank));
    engine.step.run([&](int) { batches->load_next(engine.model.network()); }, 0.01 / (1 + update));
    engine.finish();
  }
}

Checkpoint checkpoint_of(Engine& engine, const MpiSession& session) {
  Snapshot snapshot(engine, session);
  snapshot.take();
  if (!session.is_root()) return {};
  return {snapshot.state(), snapshot.tensors()};
}

void check_same(const Checkpoint& a, const Checkpoint& b) {
  CHECK(text_of(a.state) == text_of(b.state));
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    CAPTURE(a.tensors[i].name);
    const auto& x = a.tensors[i].values;
    const auto& y = b.tensors[i].values;
    CHECK(a.tensors[i].name == b.tensors[i].name);
    CHECK((x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0));
  }
}

}  // namespace

TEST_CASE("a training continues from a checkpoint bit for bit", "[checkpoint]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  int count = 0;
  for (const StrategyEntry& strategy : strategies()) {
    if (!strategy.ranks_agree || !test::can_run(strategy, backend.kind)) continue;
    const std::string optimizer = count++ % 2 == 0 ? "sgd" : "adam";
    CAPTURE(strategy.name, optimizer);
    const EngineSettings settings = small_settings(strategy.name, optimizer);
    Checkpoint half;
    Checkpoint whole;
    {
      Engine engine(settings, backend);
      engine.allocate(session.local_size());
      train(engine, 0, 2);
      half = checkpoint_of(engine, session);
      train(engine, 2, 4);
      whole = checkpoint_of(engine, session);
    }
    const std::string text = session.all_gather(session.is_root() ? text_of(half.state) : "")[0];
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    restore(engine, session, state_of(text), half.tensors, "the file");
    const Checkpoint restored = checkpoint_of(engine, session);
    if (session.is_root()) check_same(restored, half);
    train(engine, 2, 4);
    const Checkpoint continued = checkpoint_of(engine, session);
    if (session.is_root()) check_same(continued, whole);
  }
}

TEST_CASE("a checkpoint's tensors have the network's names, and the training's", "[checkpoint]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  EngineSettings settings = small_settings("zero1", "adam");
  settings.strategy.norm_stats = GENERATE("first", "average");
  Engine engine(settings, backend);
  engine.allocate(session.local_size());
  train(engine, 0, 1);
  const Checkpoint checkpoint = checkpoint_of(engine, session);
  const std::vector<Tensor> state = engine.model.state();
  if (!session.is_root()) return;
  const std::size_t parameters = engine.model.network().table().parameters().size();
  REQUIRE(checkpoint.tensors.size() == state.size() + 2 * parameters + 1);
  for (std::size_t i = 0; i < state.size(); ++i) {
    CHECK(checkpoint.tensors[i].name == state[i].name);
    const auto& values = checkpoint.tensors[i].values;
    REQUIRE(values.size() == state[i].values.size());
    for (std::size_t k = 0; k < values.size(); ++k)  // an average's sum has another order
      if (std::abs(values[k] - state[i].values[k]) > 1e-6F * std::abs(values[k]))
        FAIL_CHECK(state[i].name << ": " << values[k] << ", not " << state[i].values[k]);
  }
  CHECK(checkpoint.tensors[state.size()].name == "training_state.exp_avg." + state[0].name);
  CHECK(checkpoint.tensors.back().shape[0] == session.world_size());
  // and as weights they load without a remark
  std::vector<float> master(engine.model.network().table().stored_count());
  CHECK(engine.model.network().take(checkpoint.tensors, "f", master).ignored.empty());
}

TEST_CASE("ranks agree on the highest value at the same step", "[checkpoint][session]") {
  const MpiSession& session = test::session();
  const int last = session.world_size() - 1;
  MpiAgreement agreement(session, 2);
  int seen = -1;
  for (int step = 0; step < 30; ++step) {
    const int value = session.rank() == last && step == 7 ? 2 : session.rank() == 0 && step == 8;
    const int highest = agreement.step(value);
    if (highest == 2) seen = step;
    CHECK(highest == (step == 7 + agreement.lag() ? 2 : step == 8 + agreement.lag() ? 1 : 0));
  }
  CHECK(session.all_gather(static_cast<double>(seen)) ==
        std::vector<double>(session.hosts().size(), 7.0 + agreement.lag()));
  agreement.step(session.rank() == last ? 1 : 0);
  CHECK(agreement.settle(0) == 1);
  CHECK(agreement.settle(0) == 0);
}

}  // namespace shakedown::training
