// Ranks that compute one another's batches: what a check leaves, what it finds, and who is blamed.
#include "training/measure/neighbour_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "tests/support/transcript.hpp"
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

struct Trained {
  std::vector<float> weights, statistics;
  Metrics step, total;
  float loss_scale;
};

/// Four updates, checked or not.
Trained train(const EngineSettings& settings, BackendKind kind, bool checked, bool same_batch) {
  test::EngineRig rig(settings, kind);
  Engine& engine = rig.engine;
  std::vector<std::uint64_t> seeds;  // else another batch in each step, as files have
  for (std::uint64_t batch = 0; batch < (same_batch ? 1 : 4); ++batch)
    seeds.push_back(derive_seed(batch, static_cast<std::uint64_t>(test::session().rank())));
  const auto batches =
      make_synthetic_batches(engine.device(), engine.stream(), settings.network, seeds);
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
  test::EngineRig rig(settings, test::backends().back());
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
Votes with_wrong(Votes votes, std::size_t rank, std::uint64_t by) {
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
  test::EngineRig rig(settings_of("ddp"), kind);
  REQUIRE(rig.batches->load_next(rig.engine.model.network()));
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

TEST_CASE("who is wrong, by votes and second computations", "[neighbour]") {
  test::check_transcript("tests/training/neighbour_votes.txt", [](const std::string& given) {
    std::istringstream in(given);
    int ranks = 0;
    std::string device;
    in >> ranks >> device;
    Votes votes = sound(ranks, std::min(ranks, 3));
    Votes again = votes;
    Votes by_host = votes;
    std::uint64_t first = 0, second = 0, host = 0;  // what is wrong with them; 0: nothing
    for (std::size_t rank = 0; in >> rank >> first >> second >> host;) {
      votes = with_wrong(votes, rank, first);
      again = with_wrong(again, rank, second);
      by_host = with_wrong(by_host, rank, host);
    }
    if (!differ({votes[0], votes[1]})) return std::string("no dispute");
    const auto disputes = disputes_of(votes, again, by_host);
    std::string text;
    for (const Dispute& d : disputes)
      text += fmt::format(
          "batch {} by ranks {}: {} in tensors {}\n", d.batch, fmt::join(d.voters, ", "),
          d.wrong ? fmt::format("rank {} wrong, {}", *d.wrong, name_of(d.second)) : "undecided",
          fmt::join(d.parameters, ", "));
    for (const Verdict& verdict : verdicts_of(disputes, names(ranks, device == "gpus")))
      text += line_of(verdict) + "\n";
    return text;
  });
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

}  // namespace shakedown::training
