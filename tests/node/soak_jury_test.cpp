// Who is found wrong, by votes and by second looks.
#include <cmath>
#include <vector>

#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/findings.hpp"
#include "launch/node/soak/jury.hpp"
#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kRight = 7;
constexpr std::uint64_t kWrong = 8;

TileRecord steady(std::uint64_t hash) { return {hash, 0, 0, 0}; }
TileRecord unsteady(std::uint64_t hash) { return {hash, hash + 1, 3, 5}; }

Look look(int differing, int beyond = -1) { return {100, differing, 0, beyond, 0}; }

}  // namespace

TEST_CASE("a majority names the GPU that it contradicts", "[soak]") {
  CHECK(vote(std::vector{steady(kRight), steady(kRight), steady(kRight)}).agreed());
  const Ruling one = vote(std::vector{steady(kRight), steady(kWrong), steady(kRight)});
  CHECK(one.wrong == std::vector{1});
  CHECK(one.right == kRight);
  const Ruling two =
      vote(std::vector{steady(kWrong), steady(kRight), steady(kRight), steady(9), steady(kRight)});
  CHECK(two.wrong == std::vector{0, 3});
  const Ruling shaky = vote(std::vector{steady(kRight), steady(kRight), unsteady(kRight)});
  CHECK(shaky.wrong == std::vector{2});
  CHECK(shaky.right == kRight);
}

TEST_CASE("without a majority nobody is accused", "[soak]") {
  const Ruling different = vote(std::vector{steady(1), steady(2), steady(3)});
  CHECK(different.wrong.empty());
  CHECK_FALSE(different.agreed());
  const Ruling halves =
      vote(std::vector{steady(kRight), steady(kRight), steady(kWrong), steady(kWrong)});
  CHECK_FALSE(halves.undecided.empty());
  // Two of five steady are too few to call the three others broken.
  CHECK_FALSE(
      vote(std::vector{steady(kRight), steady(kRight), unsteady(1), unsteady(2), unsteady(3)})
          .undecided.empty());
  CHECK_FALSE(vote(std::vector{unsteady(1), unsteady(1), unsteady(1)}).undecided.empty());
}

TEST_CASE("one and two GPUs", "[soak]") {
  CHECK(vote(std::vector{steady(kRight)}).agreed());
  CHECK(vote(std::vector{unsteady(kRight)}).wrong == std::vector{0});
  CHECK(vote(std::vector{steady(kRight), steady(kRight)}).agreed());
  CHECK_FALSE(vote(std::vector{steady(kRight), steady(kWrong)}).undecided.empty());
  const Ruling shaky = vote(std::vector{unsteady(kRight), steady(kRight)});
  CHECK(shaky.wrong == std::vector{0});
  CHECK(shaky.right == kRight);
  CHECK_FALSE(vote(std::vector{unsteady(kRight), unsteady(kRight)}).undecided.empty());
}

TEST_CASE("only tiles without agreement are findings", "[soak]") {
  const std::vector<std::vector<TileRecord>> records{{steady(1), steady(2), steady(3)},
                                                     {steady(1), steady(5), steady(3)},
                                                     {steady(1), steady(2), unsteady(3)}};
  const auto findings = vote_by_tile(records);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].tile == 1);
  CHECK(findings[0].ruling.wrong == std::vector{1});
  CHECK(findings[1].tile == 2);
  CHECK(findings[1].ruling.wrong == std::vector{2});
  CHECK(digest_of(records[0]) != digest_of(records[1]));
  CHECK(digest_of(records[2]).differing == 3);
  CHECK(digest_of(records[0]) == digest_of({records[0]}));
}

TEST_CASE("second looks separate a defect, a transient and our own bug", "[soak]") {
  const Ruling accused{{1}, kRight, ""};
  const auto defect = conclude(accused, std::vector{look(0), look(100), look(0)});
  REQUIRE(defect.size() == 1);
  CHECK(defect[0].juror == 1);
  CHECK(defect[0].outcome == Outcome::fail);
  CHECK(defect[0].class_ == Class::hardware);
  CHECK(defect[0].cause == "the others contradict it; reproduces 100 of 100, the others 0 of 200");
  const auto transient = conclude(accused, std::vector{look(0), look(0), look(0)});
  CHECK(transient[0].outcome == Outcome::fail);
  CHECK(transient[0].cause.find("reproduces 0 of 100") != std::string::npos);
  const auto all = conclude(accused, std::vector{look(3), look(100), look(2)});
  CHECK(all[0].outcome == Outcome::inconclusive);
  CHECK(all[0].class_ == Class::software);
}

TEST_CASE("a hash that disagrees though the data agree is software's", "[soak]") {
  std::vector looks{look(0), look(100)};
  looks[1].hash_disagrees = 1;
  const auto own = conclude({{1}, kRight, ""}, looks);
  REQUIRE(own.size() == 1);
  CHECK(own[0].juror == 1);
  CHECK(own[0].outcome == Outcome::fail);
  CHECK(own[0].class_ == Class::software);
}

TEST_CASE("where the vote decides nothing, the CPU's result or unsteadiness does", "[soak]") {
  const Ruling open{{}, {}, "two GPUs differ, both steadily"};
  const auto refuted = conclude(open, std::vector{look(0, 0), look(0, 12)});
  CHECK(refuted[0].juror == 1);
  CHECK(refuted[0].class_ == Class::hardware);
  CHECK(conclude(open, std::vector{look(4, 0), look(0, 0)})[0].juror == 0);
  const auto neither = conclude(open, std::vector{look(0, 0), look(0, 0)});
  CHECK(neither[0].outcome == Outcome::inconclusive);
  CHECK(neither[0].juror == -1);
  const auto both = conclude(open, std::vector{look(0, 1), look(0, 1)});
  CHECK(both[0].outcome == Outcome::inconclusive);
  CHECK(both[0].class_ == Class::software);
  const Ruling alone{{}, {}, "the result is not the known answer"};
  CHECK(conclude(alone, std::vector{look(0, 3)})[0].class_ == Class::hardware);
}

TEST_CASE("a result that was refuted once fails, though it is right when repeated", "[soak]") {
  const auto once = refuted_once({-1, 17}, std::vector{look(0, 0), look(0, 0)});
  REQUIRE(once.size() == 1);
  CHECK((once[0].juror == 1 && once[0].outcome == Outcome::fail));
  CHECK(once[0].cause.find("reproduces 0 of 100") != std::string::npos);
  CHECK(refuted_once({3}, std::vector{look(0, 0)}).size() == 1);
  CHECK(refuted_once({3, 3}, std::vector{look(0, 0), look(0, 0)}).empty());
  CHECK(refuted_once({-1, -1}, std::vector{look(0, 0), look(0, 0)}).empty());
}

TEST_CASE("a replay that differs on all of several devices blames none", "[soak]") {
  const auto outcomes = [](const std::vector<Look>& looks) {
    std::vector<std::pair<Scope, Outcome>> all;
    Capsule capsule;
    capsule.expected_hash = kRight;
    for (const Verdict& verdict : verdicts_of(looks, capsule, {"GPU-a", "GPU-b"})) {
      all.emplace_back(verdict.scope, verdict.outcome);
      CHECK((verdict.outcome != Outcome::fail || (verdict.class_ && !verdict.action.empty())));
    }
    return all;
  };
  using Outcomes = std::vector<std::pair<Scope, Outcome>>;
  CHECK(outcomes({look(5), look(5)}) == Outcomes{{Scope::job, Outcome::inconclusive}});
  CHECK(outcomes({look(0), look(5)}) ==
        Outcomes{{Scope::gpu, Outcome::pass}, {Scope::gpu, Outcome::fail}});
  CHECK(outcomes({look(5)}) == Outcomes{{Scope::gpu, Outcome::fail}});
  Look hash = look(0);
  hash.hash_disagrees = 1;
  CHECK(outcomes({hash}) == Outcomes{{Scope::gpu, Outcome::fail}});
}

}  // namespace shakedown::node
