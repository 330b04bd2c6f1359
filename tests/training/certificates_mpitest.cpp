// Certificates: strategies compared with all-reduce, right and made wrong.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/lossy_strategy.hpp"
#include "tests/support/strategies.hpp"
#include "training/measure/records.hpp"
#include "training/measure/throughput.hpp"

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

namespace {

/// The backends' precisions, and bfloat16, whose roundings hide most.
std::vector<Case> certified_cases() {
  std::vector<Case> all = cases();
  if (test::has(BackendKind::gpu)) all.push_back({BackendKind::gpu, Precision::bf16});
  return all;
}

/// An engine of a strategy that `loss` makes wrong when it is changed, and its batches.
struct Rig {
  Rig(Case c, const StrategyOptions& strategy, int accumulate = 1)
      : backend(test::open_backend_of(c.backend)), settings(settings_of(c.precision, "")) {
    settings.strategy = strategy;
    settings.accumulate = accumulate;
    settings.network.tuning.fusion = Fusion::statistics;  // not while strategies are compared
    make_lossy(settings, loss);
    engine = std::make_unique<Engine>(settings, backend);
    engine->allocate(test::session().local_size());
    batches = make_synthetic_batches(engine->device(), engine->stream(), settings.network,
                                     static_cast<std::uint64_t>(test::session().rank()) + 1);
  }
  /// The engine as certify() gets it.
  Certificate certify_with(Loss how, double learning_rate = 0.01) {
    loss = how;
    engine->step.use_strategy(settings.strategy);
    engine->model.restart();
    return certify(*engine, *batches, learning_rate, test::session());
  }

  Backend backend;
  EngineSettings settings;
  Loss loss = Loss::none;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BatchSource> batches;
};

}  // namespace

TEST_CASE("certificates pass, and fail for a strategy that is wrong", "[strategies]") {
  const Case c = GENERATE_COPY(from_range(certified_cases()));
  const MpiSession& session = test::session();
  for (const StrategyOptions& strategy : exchanging_strategies(c.backend)) {
    CAPTURE(name_of(c.backend), name_of(c.precision), strategy.strategy);
    Rig rig(c, strategy);
    const Certificate certificate = rig.certify_with(Loss::none);
    INFO(record_of(certificate).dump());
    if (session.world_size() == 1) {
      CHECK_FALSE(certificate.waived.empty());
      continue;
    }
    CHECK(certificate.passes());
    CHECK(certificate.census.ranks == rig.engine->step.ranks_computing());
    CHECK(record_of(certificate)["detects_one_rank_in"] == certificate.census.ranks);
    CHECK(rig.engine->model.read_scalars().updates == 0);  // the engine is as at the start

    for (const Loss loss : {Loss::lost, Loss::doubled, Loss::swapped}) {
      if (loss == Loss::swapped && certificate.census.ranks == 1) continue;
      const Certificate failed = rig.certify_with(loss);
      INFO(record_of(failed).dump());
      CHECK(failed.outcome == Outcome::fail);
      CHECK_FALSE(failed.census.pass);
      const auto names = [&](int rank, const char* what) {
        return ContainsSubstring(fmt::format("rank {} is {}", rank, what));
      };
      const int first = rig.engine->step.first_computing();
      const int last = session.world_size() - 1;
      if (loss == Loss::lost) CHECK_THAT(failed.cause, names(last, "lost"));
      if (loss == Loss::doubled) CHECK_THAT(failed.cause, names(last, "doubled"));
      if (loss == Loss::swapped)
        CHECK_THAT(failed.cause, names(last, "lost") || names(first, "doubled"));
      CHECK(record_of(failed)["detects_one_rank_in"].is_null());
    }
  }
}

TEST_CASE("certificates look for each micro-batch and in each small piece of an exchange",
          "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  const BackendKind kind = test::backends().front();
  std::vector<StrategyOptions> list;
  for (const char* name : {"all-reduce", "ddp", "zero1", "zero2", "fsdp"})
    list.push_back(test::small_buckets_of(name));
  list[2].bucket_cap_mb = 0;
  for (const StrategyOptions& strategy : list) {
    CAPTURE(strategy.strategy);
    Rig rig({kind, Precision::fp32}, strategy, 3);
    const Certificate certificate = rig.certify_with(Loss::none);
    INFO(record_of(certificate).dump());
    CHECK(certificate.passes());
    CHECK_FALSE(rig.certify_with(Loss::lost).passes());
  }
}

TEST_CASE("certificates fail where an update's weights are not published", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  const Case c = GENERATE_COPY(from_range(certified_cases()));
  for (const StrategyOptions& strategy : exchanging_strategies(c.backend)) {
    if (find_strategy(strategy.strategy).each_updates_all) continue;  // nothing is published
    if (strategy.strategy == "peer") continue;                        // by the update
    CAPTURE(name_of(c.precision), strategy.strategy);
    Rig rig(c, strategy);
    const Certificate failed = rig.certify_with(Loss::unpublished);
    INFO(record_of(failed).dump());
    CHECK(failed.outcome == Outcome::fail);
    CHECK(failed.census.pass);
    CHECK_THAT(failed.cause, ContainsSubstring("with other weights than the update made"));
  }
}

TEST_CASE("certificates compare the batch that a rank has with the one made for it",
          "[strategies]") {
  /// Whatever was made for the others, each rank gets a copy of rank 0's.
  class SameForAll final : public BatchSource {
   public:
    SameForAll(Engine& engine, bool wrong) {
      for (int r = 0; r < test::session().world_size(); ++r)
        of_ranks_.push_back(make_synthetic_batches(engine.device(), engine.stream(),
                                                   engine.settings().network,
                                                   static_cast<std::uint64_t>(r) + 1));
      mine_ = wrong ? 0 : static_cast<std::size_t>(test::session().rank());
    }
    std::optional<DeviceBatch> next() override { return of_ranks_[mine_]->next(); }
    void start_epoch(int, long) override {}
    std::vector<DeviceBatch> of_all_ranks() const override {
      std::vector<DeviceBatch> made;
      if (test::session().is_root())
        for (const auto& source : of_ranks_) made.push_back(*source->next());
      return made;
    }

   private:
    std::vector<std::unique_ptr<BatchSource>> of_ranks_;
    std::size_t mine_;
  };
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Rig rig({test::backends().front(), Precision::fp32}, test::small_buckets_of("data-parallel"));
  const auto certificate_of = [&](BatchSource& batches) {
    return certify(*rig.engine, batches, 0.01, session);
  };
  CHECK_FALSE(certificate_of(*rig.batches).inputs_compared);  // each rank makes its own

  SameForAll wrong(*rig.engine, true);
  const Certificate failed = certificate_of(wrong);
  CHECK(failed.outcome == Outcome::fail);
  CHECK_THAT(failed.cause, ContainsSubstring("rank 1 on") && ContainsSubstring("another batch"));

  SameForAll right(*rig.engine, false);
  CHECK(certificate_of(right).passes());
  std::vector<std::unique_ptr<BatchSource>> of_every_rank;
  for (int r = 0; session.is_root() && r < session.world_size(); ++r)
    of_every_rank.push_back(make_synthetic_batches(rig.engine->device(), rig.engine->stream(),
                                                   rig.settings.network,
                                                   static_cast<std::uint64_t>(r) + 1));
  const auto scattered =
      make_scattered_batches(rig.engine->world(), rig.engine->device(), rig.engine->stream(),
                             rig.settings.network, std::move(of_every_rank), 0);
  const Certificate passed = certificate_of(*scattered);
  INFO(record_of(passed).dump());
  CHECK(passed.passes());
  CHECK(passed.inputs_compared);
}

TEST_CASE("certificates pass and fail at a learning rate that moves no weight", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  for (const char* optimizer : {"sgd", "adamw", "lars"}) {
    CAPTURE(optimizer);
    Backend backend = test::open_backend_of(test::backends().front());
    EngineSettings settings = settings_of(Precision::fp32, "ddp");
    settings.optimizer.optimizer = optimizer;
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    const auto batches = make_synthetic_batches(engine.device(), engine.stream(), settings.network,
                                                static_cast<std::uint64_t>(session.rank()) + 1);
    for (const double learning_rate : {0.0, 1e-12, 1e-7}) {
      const Certificate certificate = certify(engine, *batches, learning_rate, session);
      INFO(record_of(certificate).dump());
      CHECK(certificate.passes());
      CHECK(certificate.learning_rate >= 0.001);
      CHECK(certificate.difference.relative_tolerance < 0.2);
    }
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
  CHECK(certificate.outcome == Outcome::fail);
  CHECK(certificate.census.pass);  // whatever the weights
  CHECK_THAT(certificate.cause, ContainsSubstring("diverged"));
  CHECK_NOTHROW(check_weights(engine, session, "here"));  // the engine is as at the start
}

TEST_CASE("certificates show the effect of a conversion", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  for (const char* strategy : {"ddp", "all-reduce"}) {
    StrategyOptions options;
    options.strategy = strategy;
    options.grad_dtype = "bf16";
    Rig rig({test::backends().front(), Precision::fp32}, options);
    const Certificate certificate = rig.certify_with(Loss::none);
    INFO(record_of(certificate).dump());
    CHECK(certificate.reference == "all-reduce");
    CHECK(certificate.passes());
    CHECK(certificate.difference.relative_diff > 1e-4);  // bfloat16's roundings
    CHECK(rig.certify_with(Loss::lost).outcome == Outcome::fail);
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
