// Who is blamed where ranks computed different gradients, and in which words.
#include "training/measure/neighbour_check.hpp"

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

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
