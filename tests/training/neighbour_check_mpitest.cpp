// Ranks that compute one another's batches: what a check leaves, and what it finds.
#include "common/error.hpp"
#include "training/measure/neighbour_check.hpp"

#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/data/batches.hpp"

namespace shakedown::training {
namespace {

EngineSettings settings_of(const std::string& strategy, Precision precision = Precision::fp32) {
  EngineSettings settings;
  settings.network.architecture = find_architecture("tiny");
  settings.network.batch_size = 4;
  settings.network.image_size = 32;
  settings.network.classes = 10;
  settings.network.precision = precision;
  settings.network.tuning.deterministic = true;
  settings.strategy.strategy = strategy;
  settings.seed = 5;
  return settings;
}

/// Another batch in each step, as files have.
class NewBatches final : public BatchSource {
 public:
  NewBatches(Engine& engine, int rank) : engine_(engine), rank_(rank) {}
  std::optional<DeviceBatch> next() override {
    source_ = make_synthetic_batches(engine_.device(), engine_.stream(), engine_.settings().network,
                                     derive_seed(++step_, rank_));
    return source_->next();
  }
  void start_epoch(int, long) override {}

 private:
  Engine& engine_;
  std::uint64_t rank_;
  std::uint64_t step_ = 0;
  std::unique_ptr<BatchSource> source_;
};

struct Rig {
  explicit Rig(const EngineSettings& settings, BackendKind kind = test::backends().back())
      : backend(test::open_backend_of(kind)), engine(settings, backend) {
    engine.allocate(test::session().local_size());
  }
  Backend backend;
  Engine engine;
};

struct Trained {
  std::vector<float> weights, statistics;
  Metrics step, total;
  float loss_scale;
};

/// Four updates, checked or not.
Trained train(const EngineSettings& settings, BackendKind kind, bool checked, bool same_batch) {
  Rig rig(settings, kind);
  Engine& engine = rig.engine;
  std::unique_ptr<BatchSource> batches;
  if (same_batch)
    batches = make_synthetic_batches(engine.device(), engine.stream(), settings.network,
                                     static_cast<std::uint64_t>(test::session().rank()));
  else
    batches = std::make_unique<NewBatches>(engine, test::session().rank());
  std::optional<NeighbourCheck> check;
  if (checked) {
    check.emplace(engine);
    engine.step.before_update([&] { CHECK(check->disputes().empty()); });
  }
  for (int i = 0; i < 4; ++i)
    engine.step.run([&](int) { REQUIRE(batches->load_next(engine.model.network())); }, 1e-2);
  engine.finish();
  const HeadMetrics metrics = engine.model.network().read_metrics();
  return {engine.model.master_weights(), engine.model.statistics(), metrics.step, metrics.total,
          engine.model.read_scalars().loss_scale};
}

void check_equal(const Trained& a, const Trained& b) {
  CHECK(a.weights == b.weights);
  CHECK(a.statistics == b.statistics);
  CHECK(a.loss_scale == b.loss_scale);
  for (const auto& [x, y] : {std::pair{a.step, b.step}, std::pair{a.total, b.total}}) {
    CHECK(x.loss_sum == y.loss_sum);
    CHECK(x.top1 == y.top1);
    CHECK(x.samples == y.samples);
  }
}

std::string refusal(const EngineSettings& settings) {
  Rig rig(settings);
  try {
    NeighbourCheck check(rig.engine);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a check leaves the training as it was, to the last bit", "[neighbour]") {
  if (test::session().world_size() < 2) return;
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const std::string strategy = GENERATE("ddp", "zero2", "parameter-server", "data-parallel");
  CAPTURE(name_of(kind), strategy);
  if (test::session().world_size() < 3 && strategy == "parameter-server") return;
  EngineSettings settings =
      settings_of(strategy, kind == BackendKind::gpu ? Precision::fp16 : Precision::fp32);
  settings.accumulate = strategy == "ddp" ? 2 : 1;
  const bool same_batch = strategy != "zero2";
  check_equal(train(settings, kind, true, same_batch), train(settings, kind, false, same_batch));
}

TEST_CASE("a wrong bit or hash is found, and the rank named", "[neighbour]") {
  const int ranks = test::session().world_size();
  if (ranks < 2) return;
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const FaultKind fault = GENERATE(FaultKind::product, FaultKind::hash);
  CAPTURE(name_of(kind), name_of(fault));
  Rig rig(settings_of("ddp"), kind);
  auto batches = make_synthetic_batches(rig.engine.device(), rig.engine.stream(),
                                        rig.engine.settings().network,
                                        static_cast<std::uint64_t>(test::session().rank()));
  REQUIRE(batches->load_next(rig.engine.model.network()));
  NeighbourCheck check(rig.engine, Fault{.kind = fault, .rank = 1});
  const auto disputes = check.disputes();
  REQUIRE(disputes.size() == static_cast<std::size_t>(std::min(ranks, 3)));
  for (const Dispute& dispute : disputes) {
    const bool decided = ranks > 2 || fault == FaultKind::hash;
    CHECK(dispute.wrong == (decided ? std::optional<int>(1) : std::nullopt));
    if (decided)
      CHECK(dispute.second == (fault == FaultKind::hash ? Second::hash : Second::same_bits));
    const auto tensors = static_cast<std::size_t>(rig.engine.model.network().blocks());
    CHECK(dispute.parameters.size() == (fault == FaultKind::hash ? 1 : tensors));
  }
  CHECK(NeighbourCheck(rig.engine).disputes().empty());
}

TEST_CASE("where gradients cannot be compared, a check is refused", "[neighbour]") {
  EngineSettings fast = settings_of("ddp");
  fast.network.tuning.deterministic = false;
  CHECK(refusal(fast).find("needs --deterministic") != std::string::npos);
  EngineSettings stem = settings_of("ddp");  // its sums begin at each rank's running mean
  stem.network.tuning.fusion = Fusion::stem;
  CHECK(refusal(stem).find("--fusion stem") != std::string::npos);
  if (test::session().world_size() < 2) {
    CHECK(refusal(settings_of("ddp")).find("at least 2 ranks") != std::string::npos);
    return;
  }
  CHECK(refusal(settings_of("none")).find("other weights on each rank") != std::string::npos);
  CHECK(refusal(settings_of("fsdp")).find("no rank with all weights") != std::string::npos);
  if (test::session().world_size() == 2)
    CHECK(refusal(settings_of("parameter-server")).find("not 1") != std::string::npos);
}

}  // namespace shakedown::training
