// Ranks that compute one another's batches: what a check leaves, what it finds, and who is blamed.
#include "training/measure/neighbour_check.hpp"

#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "training/data/batches.hpp"

namespace shakedown::training {
namespace {

EngineSettings settings_of(const std::string& strategy, Precision precision = Precision::fp32) {
  EngineSettings settings = test::settings_of(precision, strategy);
  settings.network.batch_size = 4;
  settings.network.image_size = 32;
  settings.network.tuning.deterministic = true;
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
  return test::error_of([&] { NeighbourCheck check(rig.engine); });
}

constexpr int kParameters = 3;

/// What ranks without a fault compute of the batches, two or three ranks each.
Votes sound(int ranks, int shifts) {
  Votes votes;
  for (int shift = 0; shift < shifts; ++shift) {
    auto& of_ranks = votes.emplace_back();
    for (int r = 0; r < ranks; ++r) {
      Hashes hashes;
      for (int p = 0; p < kParameters; ++p)
        hashes.push_back(static_cast<std::uint64_t>(100 * ((r + shift) % ranks) + p));
      of_ranks.push_back(hashes);
    }
  }
  return votes;
}

/// Whatever the rank computes is wrong, in its last parameter.
Votes with_wrong(Votes votes, std::size_t rank, std::uint64_t by = 7) {
  for (auto& of_ranks : votes) of_ranks[rank].back() ^= by << 32;
  return votes;
}

Names names(int ranks, bool gpus) {
  Names made;
  for (int r = 0; r < ranks; ++r) {
    made.ranks.push_back(r);
    made.gpus.push_back(gpus ? "GPU-" + std::to_string(r) : "");
  }
  made.parameters = {"conv1.weight", "fc.weight", "fc.bias"};
  return made;
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

// Who is blamed where ranks computed different gradients, and in which words.

TEST_CASE("ranks that compute the same have no dispute", "[neighbour]") {
  const int ranks = GENERATE(2, 3, 4, 8);
  CHECK_FALSE(differ(sound(ranks, 2)));
  CHECK(disputes_of(sound(ranks, 2), sound(ranks, 2), sound(ranks, 2)).empty());
}

TEST_CASE("of three, the rank that the others outvote is wrong", "[neighbour]") {
  const int ranks = GENERATE(3, 4, 8);
  const auto wrong = static_cast<std::size_t>(GENERATE(0, 1, 2));
  CAPTURE(ranks, wrong);
  CHECK(differ(with_wrong(sound(ranks, 2), wrong)));
  const Votes votes = with_wrong(sound(ranks, 3), wrong);
  const auto disputes = disputes_of(votes, votes, votes);
  CHECK(disputes.size() == 3);  // its own batch, and those of the two ranks after it
  for (const Dispute& dispute : disputes) {
    REQUIRE(dispute.wrong);
    CHECK(*dispute.wrong == static_cast<int>(wrong));
    CHECK(dispute.voters[dispute.accused()] == *dispute.wrong);
    CHECK(dispute.second == Second::same_bits);
    CHECK(dispute.parameters == std::vector<std::size_t>{kParameters - 1});
  }
}

TEST_CASE("a second computation shows what kind of error it is", "[neighbour]") {
  const Votes votes = with_wrong(sound(3, 3), 1);
  const Votes right = sound(3, 3);
  const Votes other = with_wrong(sound(3, 3), 1, 9);
  const auto second = [&](const Votes& again, const Votes& by_host) {
    const auto disputes = disputes_of(votes, again, by_host);
    REQUIRE(disputes.size() == 3);
    for (const Dispute& dispute : disputes) {
      CHECK(dispute.wrong == 1);
      CHECK(dispute.second == disputes[0].second);
    }
    return disputes[0].second;
  };
  CHECK(second(votes, votes) == Second::same_bits);
  CHECK(second(other, other) == Second::other_bits);
  CHECK(second(right, right) == Second::right);
  CHECK(second(votes, right) == Second::hash);
}

TEST_CASE("two ranks cannot decide, except where a hash is wrong", "[neighbour]") {
  const Votes votes = with_wrong(sound(2, 2), 1);
  const auto undecided = disputes_of(votes, votes, votes);
  REQUIRE(undecided.size() == 2);
  for (const Dispute& dispute : undecided) CHECK_FALSE(dispute.wrong);
  const auto verdicts = verdicts_of(undecided, names(2, true));
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].outcome == Outcome::fail);
  CHECK(verdicts[0].scope == Scope::job);
  CHECK_FALSE(verdicts[0].class_);
  CHECK(verdicts[0].cause ==
        "ranks 0, 1 computed different gradients from the batches of ranks 0, 1, in 1 of 3 "
        "tensors, fc.bias the first; of two, which one is wrong is not known");
  const auto hash = disputes_of(votes, votes, sound(2, 2));
  REQUIRE(hash.size() == 2);
  for (const Dispute& dispute : hash) {
    CHECK(dispute.wrong == 1);
    CHECK(dispute.second == Second::hash);
  }
}

TEST_CASE("three different answers are nobody's fault", "[neighbour]") {
  Votes votes = sound(3, 3);
  votes[0][0][0] = 1001;  // of rank 0's batch: ranks 0, 2 and 1
  votes[1][2][0] = 1002;
  votes[2][1][0] = 1003;
  const auto disputes = disputes_of(votes, votes, votes);
  REQUIRE(disputes.size() == 1);
  CHECK(disputes[0].batch == 0);
  CHECK(disputes[0].voters == std::vector<int>{0, 2, 1});
  CHECK_FALSE(disputes[0].wrong);
  const Verdict verdict = verdicts_of(disputes, names(3, true)).front();
  CHECK(verdict.outcome == Outcome::inconclusive);
  CHECK(verdict.class_ == Class::software);
}

TEST_CASE("the verdict names the GPU, the ranks and the first tensor", "[neighbour]") {
  const Votes votes = with_wrong(sound(3, 3), 1);
  const auto verdicts = verdicts_of(disputes_of(votes, votes, votes), names(3, true));
  REQUIRE(verdicts.size() == 1);
  const Verdict& verdict = verdicts[0];
  CHECK(verdict.scope == Scope::gpu);
  CHECK(verdict.name == "GPU-1");
  CHECK(verdict.outcome == Outcome::fail);
  CHECK(verdict.class_ == Class::hardware);
  CHECK(
      verdict.cause ==
      "rank 1 computed other gradients than ranks 0, 2 from the batches of ranks 0, 1, 2, in 1 of "
      "3 tensors, fc.bias the first; a second computation gave the same wrong bits");
  CHECK(verdict.action.find("bin/soak") != std::string::npos);
  const Verdict on_cpu = verdicts_of(disputes_of(votes, votes, votes), names(3, false)).front();
  CHECK(on_cpu.scope == Scope::rank);
  CHECK(on_cpu.name == "1");
}

}  // namespace shakedown::training
