// Certificates: strategies compared with all-reduce, right and made wrong.
#include <nlohmann/json.hpp>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/lossy_strategy.hpp"
#include "tests/support/strategies.hpp"
#include "training/measure/records.hpp"
#include "training/measure/weights_check.hpp"

namespace shakedown::training {

using test::Case;
using test::cases;
using test::exchanging_strategies;
using test::load;
using test::settings_of;

TEST_CASE("ranks that exchange nothing are found to diverge", "[strategies]") {
  if (test::session().world_size() == 1) return;
  const BackendKind kind = test::backends().front();
  Backend backend = test::open_backend_of(kind);
  Engine engine(settings_of(Precision::fp32, "none"), backend);
  engine.allocate(test::session().local_size());
  check_ranks_agree(engine, test::session(), "here");
  engine.step.run([&](int) { load(engine.model.network(), test::session().rank(), 0); }, 0.01);
  CHECK_THROWS_WITH(check_ranks_agree(engine, test::session(), "here"),
                    ContainsSubstring("rank 1 on ") && ContainsSubstring("differs from rank 0 on"));
}

TEST_CASE("certificates pass, and fail for a strategy that is wrong", "[strategies]") {
  const Case c = GENERATE(from_range(cases()));
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(c.backend);
  for (const StrategyOptions& strategy : exchanging_strategies(c.backend)) {
    CAPTURE(name_of(c.backend), name_of(c.precision), strategy.strategy, strategy.ps_exchange,
            strategy.ps_partition_mb);
    EngineSettings settings = settings_of(c.precision, "");
    settings.strategy = strategy;
    settings.network.tuning.fusion = Fusion::statistics;  // not while strategies are compared
    bool loses = false;
    make_lossy(settings, loses);
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    const auto batches = make_synthetic_batches(engine.device(), engine.stream(), settings.network,
                                                static_cast<std::uint64_t>(session.rank()) + 1);
    const Certificate certificate = certify(engine, *batches, 0.01, session);
    INFO(record_of(certificate).dump());
    if (session.world_size() == 1 || engine.step.strategy_entry().reference[0] == '\0') {
      CHECK_FALSE(certificate.waived.empty());
      continue;
    }
    CHECK(certificate.pass);
    CHECK(engine.model.read_scalars().updates == 0);  // the engine is as at the start

    loses = true;
    const Certificate failed = certify(engine, *batches, 0.01, session);
    INFO(record_of(failed).dump());
    CHECK_FALSE(failed.pass);
    CHECK(failed.waived.empty());
  }
}

TEST_CASE("a reference that diverges fails the certificate", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Backend backend = test::open_backend_of(test::backends().front());
  Engine engine(settings_of(Precision::fp32, "ddp"), backend);
  engine.allocate(session.local_size());
  const auto batches =
      make_synthetic_batches(engine.device(), engine.stream(), engine.settings().network, 1);
  const Certificate certificate = certify(engine, *batches, 1e38, session);
  CHECK_FALSE(certificate.pass);
  CHECK_THAT(certificate.cause, ContainsSubstring("diverged"));
  CHECK_NOTHROW(check_weights(engine, session, "here"));  // the engine is as at the start
}

TEST_CASE("certificates show the effect of a conversion", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Backend backend = test::open_backend_of(test::backends().front());
  for (const char* strategy : {"ddp", "all-reduce"}) {
    EngineSettings settings = settings_of(Precision::fp32, strategy);
    settings.strategy.grad_dtype = "bf16";
    bool loses = false;
    make_lossy(settings, loses);
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    const auto batches = make_synthetic_batches(engine.device(), engine.stream(), settings.network,
                                                static_cast<std::uint64_t>(session.rank()) + 1);
    const Certificate certificate = certify(engine, *batches, 0.01, session);
    INFO(record_of(certificate).dump());
    CHECK(certificate.reference == "all-reduce");
    CHECK(certificate.pass);
    CHECK(certificate.difference.relative_diff > 1e-4);  // bfloat16's roundings
    loses = true;
    CHECK_FALSE(certify(engine, *batches, 0.01, session).pass);
  }
}

TEST_CASE("ranks that train independently are far outside the tolerance", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Backend backend = test::open_backend_of(test::backends().front());
  Engine engine(settings_of(Precision::fp32, "none"), backend);
  engine.allocate(session.local_size());
  const auto batches =
      make_synthetic_batches(engine.device(), engine.stream(), engine.settings().network,
                             static_cast<std::uint64_t>(session.rank()) + 1);
  CHECK_FALSE(certify(engine, *batches, 0.01, session).waived.empty());
  StrategyOptions reference;
  reference.strategy = "all-reduce";
  const WeightDifference wrong =
      compare_strategies(engine, *batches, 0.01, session, reference, engine.settings().strategy);
  CHECK_FALSE(wrong.pass);
  CHECK(wrong.relative_diff > 0.3);
}

}  // namespace shakedown::training
