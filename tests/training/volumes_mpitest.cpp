// The table of strategies compared with the strategies themselves.
#include "training/exchange/strategy.hpp"

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

TEST_CASE("strategies have buckets where the table says so", "[volumes]") {
  if (test::session().world_size() == 1) return;  // some want two ranks
  Backend backend = test::open_backend_of(test::backends().front());
  for (const StrategyEntry& entry : strategies()) {
    if (!test::can_run(entry, backend.kind)) continue;
    CAPTURE(entry.name);
    EngineSettings settings;
    settings.network.architecture = find_architecture("tiny");
    settings.network.batch_size = 2;
    settings.network.image_size = 64;
    settings.network.tuning.autotune = false;
    settings.strategy.strategy = entry.name;
    const Engine engine(settings, backend);
    CHECK(entry.bucketed() == !engine.step.plan().buckets.empty());
  }
}

}  // namespace shakedown::training
