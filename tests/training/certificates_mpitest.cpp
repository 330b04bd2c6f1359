// Certificates: strategies compared with all-reduce, right and made wrong.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "training/measure/records.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {

namespace {

using test::Case;
using test::exchanging_strategies;
using test::small_buckets_of;

/// What happens to the last rank's: `swapped`, the first computing rank's are in their place.
enum class Loss { none, lost, doubled, swapped, unpublished };

/// Does as `whole` does, but for the gradients that it loses; or, `unpublished`, for the weights of
/// each update, which no other rank gets.
class LossyStrategy final : public Strategy {
 public:
  LossyStrategy(const StrategyContext& context, std::unique_ptr<Strategy> whole, Loss loss)
      : Strategy(context, whole->plan()), whole_(std::move(whole)), loss_(loss) {}

  void before(Next next, int block) override { whole_->before(next, block); }
  void gradients_ready(int block) override {
    if (block == 0) lose(context_.weights.gradients(context_.table.block_range(block)));
    whole_->gradients_ready(block);
  }
  std::vector<Share> finish() override { return whole_->finish(); }
  void publish(Published how) override {
    if (loss_ != Loss::unpublished || how != Published::update) whole_->publish(how);
  }

 private:
  void lose(View gradients) {
    const int first = plan().first_computing;
    const int last = context_.world.size() - 1;
    const bool mine = context_.world.rank() == last;
    if (loss_ == Loss::lost && mine)
      context_.device.zero(gradients.data, gradients.bytes(), context_.compute);
    if (loss_ == Loss::doubled && mine) {
      if (wide_.bytes() == 0) wide_ = Buffer(context_.device, gradients.count * sizeof(float));
      const View wide = wide_.view(DataType::float32);
      context_.device.kernels().convert(gradients, wide, context_.compute);
      context_.device.kernels().scale(wide, gradients, 2, context_.compute);
    }
    if (loss_ != Loss::swapped || first == last) return;
    if (context_.world.rank() == first) context_.world.send(gradients, last, context_.compute);
    if (mine) context_.world.recv(gradients, first, context_.compute);
  }

  std::unique_ptr<Strategy> whole_;
  Loss loss_;
  Buffer wide_;  // float32
};

/// Has the strategy of `settings` go wrong as `loss` says when it is made, and no other, such as
/// its reference.
void make_lossy(EngineSettings& settings, const Loss& loss) {
  settings.make_strategy = [&loss, lossy = settings.strategy](const StrategyEntry& entry,
                                                              const StrategyContext& context) {
    std::unique_ptr<Strategy> made = entry.make(context);
    const StrategyOptions& options = context.options;
    if (loss == Loss::none || options.strategy != lossy.strategy ||
        options.grad_dtype != lossy.grad_dtype)
      return made;
    return std::unique_ptr<Strategy>(
        std::make_unique<LossyStrategy>(context, std::move(made), loss));
  };
}

/// The backends' precisions, and bfloat16, whose roundings hide most.
std::vector<Case> certified_cases() {
  std::vector<Case> all = test::cases();
  if (test::has(BackendKind::gpu)) all.push_back({BackendKind::gpu, Precision::bf16});
  return all;
}
Case first_case() { return {test::backends().front(), Precision::fp32}; }

/// An engine of a strategy that `loss` makes wrong when it is changed, and its batches.
struct Rig {
  Rig(Case c, const StrategyOptions& strategy, int accumulate = 1,
      const std::string& optimizer = "")
      : settings(test::settings_of(c.precision, "")) {
    settings.strategy = strategy;
    settings.accumulate = accumulate;
    if (!optimizer.empty()) settings.optimizer.optimizer = optimizer;
    settings.network.tuning.fusion = Fusion::statistics;  // not while strategies are compared
    make_lossy(settings, loss);
    whole.emplace(settings, c.backend);
  }
  Engine& engine() { return whole->engine; }
  /// The engine as certify() gets it.
  Certificate certify_with(Loss how, double learning_rate = 0.01) {
    loss = how;
    engine().step.use_strategy(settings.strategy);
    engine().model.restart();
    return certify(engine(), *whole->batches, learning_rate, test::session());
  }

  EngineSettings settings;
  Loss loss = Loss::none;
  std::optional<test::EngineRig> whole;
};

}  // namespace

TEST_CASE("ranks that exchange nothing are found to diverge", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Rig rig(first_case(), small_buckets_of("none"));
  check_ranks_agree(rig.engine(), session, "here");
  rig.engine().step.run([&](int) { test::load(rig.engine().model.network(), session.rank(), 0); },
                        0.01);
  CHECK_THROWS_WITH(check_ranks_agree(rig.engine(), session, "here"),
                    ContainsSubstring("rank 1 on ") && ContainsSubstring("differs from rank 0 on"));
}

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
    CHECK(certificate.census.ranks == rig.engine().step.ranks_computing());
    CHECK(record_of(certificate)["detects_one_rank_in"] == certificate.census.ranks);
    CHECK(rig.engine().model.read_scalars().updates == 0);  // the engine is as at the start

    for (const Loss loss : {Loss::lost, Loss::doubled, Loss::swapped}) {
      if (loss == Loss::swapped && certificate.census.ranks == 1) continue;
      const Certificate failed = rig.certify_with(loss);
      INFO(record_of(failed).dump());
      CHECK(failed.outcome == Outcome::fail);
      CHECK_FALSE(failed.census.pass);
      const auto names = [&](int rank, const char* what) {
        return ContainsSubstring(fmt::format("rank {} is {}", rank, what));
      };
      const int first = rig.engine().step.first_computing();
      const int last = session.world_size() - 1;
      if (loss == Loss::lost) CHECK_THAT(failed.cause, names(last, "lost"));
      if (loss == Loss::doubled) CHECK_THAT(failed.cause, names(last, "doubled"));
      if (loss == Loss::swapped)
        CHECK_THAT(failed.cause, names(last, "lost") || names(first, "doubled"));
      CHECK(record_of(failed)["detects_one_rank_in"].is_null());
    }
  }
}

TEST_CASE("certificates look at each micro-batch and each small piece", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  for (const std::string name : {"all-reduce", "ddp", "zero1", "zero2", "fsdp"}) {
    CAPTURE(name);
    StrategyOptions strategy = small_buckets_of(name);
    if (name == "zero1") strategy.bucket_cap_mb = 0;
    Rig rig(first_case(), strategy, 3);
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

TEST_CASE("certificates compare a rank's batch with the one made for it", "[strategies]") {
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
  Rig rig(first_case(), small_buckets_of("data-parallel"));
  const auto certificate_of = [&](BatchSource& batches) {
    return certify(rig.engine(), batches, 0.01, session);
  };
  CHECK_FALSE(certificate_of(*rig.whole->batches).inputs_compared);  // each rank makes its own

  SameForAll wrong(rig.engine(), true);
  const Certificate failed = certificate_of(wrong);
  CHECK(failed.outcome == Outcome::fail);
  CHECK_THAT(failed.cause, ContainsSubstring("rank 1 on") && ContainsSubstring("another batch"));

  SameForAll right(rig.engine(), false);
  CHECK(certificate_of(right).passes());
  std::vector<std::unique_ptr<BatchSource>> of_every_rank;
  for (int r = 0; session.is_root() && r < session.world_size(); ++r)
    of_every_rank.push_back(make_synthetic_batches(rig.engine().device(), rig.engine().stream(),
                                                   rig.settings.network,
                                                   static_cast<std::uint64_t>(r) + 1));
  const auto scattered =
      make_scattered_batches(rig.engine().world(), rig.engine().device(), rig.engine().stream(),
                             rig.settings.network, std::move(of_every_rank), 0);
  const Certificate passed = certificate_of(*scattered);
  INFO(record_of(passed).dump());
  CHECK(passed.passes());
  CHECK(passed.inputs_compared);
}

TEST_CASE("certificates pass at a learning rate that moves no weight", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  for (const char* optimizer : {"sgd", "adamw", "lars"})
    for (const double learning_rate : {0.0, 1e-12, 1e-7}) {
      CAPTURE(optimizer, learning_rate);
      Rig rig(first_case(), small_buckets_of("ddp"), 1, optimizer);
      const Certificate certificate = rig.certify_with(Loss::none, learning_rate);
      INFO(record_of(certificate).dump());
      CHECK(certificate.passes());
      CHECK(certificate.learning_rate >= 0.001);
      CHECK(certificate.difference.relative_tolerance < 0.2);
    }
}

TEST_CASE("a reference that diverges fails the certificate", "[strategies]") {
  if (test::session().world_size() == 1) return;
  Rig rig(first_case(), small_buckets_of("ddp"));
  const Certificate certificate = rig.certify_with(Loss::none, 1e38);
  CHECK(certificate.outcome == Outcome::fail);
  CHECK(certificate.census.pass);  // whatever the weights
  CHECK_THAT(certificate.cause, ContainsSubstring("diverged"));
  CHECK_NOTHROW(check_weights(rig.engine(), test::session(), "here"));  // as at the start
}

TEST_CASE("certificates show the effect of a conversion", "[strategies]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  for (const char* strategy : {"ddp", "all-reduce"}) {
    StrategyOptions options;
    options.strategy = strategy;
    options.grad_dtype = "bf16";
    Rig rig(first_case(), options);
    const Certificate certificate = rig.certify_with(Loss::none);
    INFO(record_of(certificate).dump());
    CHECK(certificate.reference == "all-reduce");
    CHECK(certificate.passes());
    CHECK(certificate.difference.relative_diff > 1e-4);  // bfloat16's roundings
    CHECK(rig.certify_with(Loss::lost).outcome == Outcome::fail);
  }
}

}  // namespace shakedown::training
