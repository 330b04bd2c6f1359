// Who a soak finds wrong, from made-up votes and second looks; capsules.
#include "launch/node/soak/jury.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "common/usage_error.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/product_placing.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kRight = 7;
constexpr std::uint64_t kWrong = 8;

TileRecord steady(std::uint64_t hash) { return {hash, 0, 0, 0}; }
TileRecord unsteady(std::uint64_t hash) { return {hash, hash + 1, 3, 5}; }

Look look(int differing, int beyond = -1) { return {100, differing, 0, beyond, 0}; }

/// "1 FAIL HARDWARE" of juror 1.
std::string brief(const Conclusion& one) {
  return fmt::format("{} {} {}", one.juror, name_of(one.outcome.value()),
                     name_of(one.class_.value()));
}

Capsule example() {
  Capsule capsule;
  capsule.seed = 0xFEDCBA9876543210U;
  capsule.operands = Operands::integers;
  capsule.spec = {ProductType::fp8, 256, 384, 512};
  capsule.algorithm = "cublasLt 13.1 7";
  capsule.turn = 2;
  capsule.tile = 5;
  capsule.expected_hash = 1;
  capsule.found_hash = ~std::uint64_t{0};
  capsule.element = 70000;
  capsule.expected_bits = 0x3C00;
  capsule.found_bits = 0x3C01;
  capsule.circumstances = {{"temperature_c", 71.0}, {"serial", "1650"}};
  return capsule;
}

std::string refusal(const std::string& key, const Json& value) {
  Json json = to_json(example());
  if (value.is_null())
    json.erase(key);
  else
    json[key] = value;
  return test::error_of([&] { capsule_of(json, "c.json"); });
}

}  // namespace

// Who is found wrong, by votes and by second looks.

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

TEST_CASE("without a majority nobody is accused, but for its own unsteadiness", "[soak]") {
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
  // one and two GPUs
  CHECK(vote(std::vector{steady(kRight)}).agreed());
  CHECK(vote(std::vector{unsteady(kRight)}).wrong == std::vector{0});
  CHECK(vote(std::vector{steady(kRight), steady(kRight)}).agreed());
  CHECK_FALSE(vote(std::vector{steady(kRight), steady(kWrong)}).undecided.empty());
  const Ruling shaky = vote(std::vector{unsteady(kRight), steady(kRight)});
  CHECK((shaky.wrong == std::vector{0} && shaky.right == kRight));
  CHECK_FALSE(vote(std::vector{unsteady(kRight), unsteady(kRight)}).undecided.empty());
}

TEST_CASE("turns of one GPU are a jury: majority, dissent, two dissents", "[soak]") {
  const auto alone = [](std::vector<TileRecord> turns) {
    return vote(turns, static_cast<std::uint32_t>(turns.size()));
  };
  CHECK(alone({steady(kRight), steady(kRight), steady(kRight)}).agreed());
  const Ruling one = alone({steady(kRight), steady(kWrong), steady(kRight)});
  CHECK(one.wrong == std::vector{0});
  CHECK((one.right == kRight && one.turn == 1 && one.by_turns && one.undecided.empty()));
  const Ruling two = alone({steady(kRight), steady(kRight), steady(9), steady(kRight), steady(10)});
  CHECK((two.wrong == std::vector{0} && two.right == kRight && two.turn == 2));
  for (const Ruling& none : {alone({steady(kRight), steady(9), steady(10)}),
                             alone({steady(9), steady(kRight), steady(9), steady(kRight)})})
    CHECK((none.wrong == std::vector{0} && !none.right && none.turn == 1 && none.by_turns));
  const Ruling shaky = alone({steady(kRight), steady(kRight), unsteady(kRight)});
  CHECK((shaky.wrong == std::vector{0} && shaky.right == kRight && shaky.turn == 2));
  CHECK_FALSE(shaky.by_turns);
  CHECK_FALSE(alone({unsteady(1), unsteady(1)}).right);
}

TEST_CASE("a GPU that contradicts itself is wrong where others do not", "[soak]") {
  // By GPU three turns.
  const std::vector<TileRecord> right(3, steady(kRight));
  const auto with = [&](std::initializer_list<std::vector<TileRecord>> gpus) {
    std::vector<TileRecord> votes;
    for (const auto& gpu : gpus) votes.insert(votes.end(), gpu.begin(), gpu.end());
    return vote(votes, 3);
  };
  CHECK(with({right, right}).agreed());
  const Ruling one = with({right, {steady(kRight), steady(kRight), steady(kWrong)}});
  CHECK((one.wrong == std::vector{1} && one.right == kRight && one.turn == 2));
  const Ruling all = with({right, {steady(7000), steady(8000), steady(9000)}});
  CHECK((all.wrong == std::vector{1} && all.right == kRight && all.turn == 0));
  const std::vector<TileRecord> otherwise(3, steady(kWrong));
  CHECK_THAT(with({right, otherwise}).undecided, ContainsSubstring("two GPUs differ"));
  const Ruling third = with({right, otherwise, right});
  CHECK((third.wrong == std::vector{1} && third.right == kRight));
  const std::vector<TileRecord> moved{steady(kRight), steady(1), steady(2)};
  CHECK_THAT(with({moved, moved}).undecided, ContainsSubstring("every GPU differs from itself"));
}

TEST_CASE("only tiles without agreement are findings", "[soak]") {
  const std::vector<std::vector<TileRecord>> records{{steady(1), steady(2), steady(3)},
                                                     {steady(1), steady(5), steady(3)},
                                                     {steady(1), steady(2), unsteady(3)}};
  const auto votes = vote_by_tile(records);
  const auto& findings = votes.findings;
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].tile == 1);
  CHECK(findings[0].ruling.wrong == std::vector{1});
  CHECK(findings[1].tile == 2);
  CHECK(findings[1].ruling.wrong == std::vector{2});
  CHECK(votes.right == std::vector<std::optional<std::uint64_t>>{1, 2, 3});
  CHECK(digest_of(records[0]) != digest_of(records[1]));
  CHECK(digest_of(records[2]).differing == 3);
  CHECK(digest_of(records[0]) == digest_of({records[0]}));
  // Two tiles in three turns: the dissent of the first turn comes first.
  const std::vector<std::vector<TileRecord>> alone{
      {steady(1), steady(7), steady(9), steady(2), steady(1), steady(2)}};
  const auto turned = vote_by_tile(alone, 3).findings;
  REQUIRE(turned.size() == 2);
  CHECK((turned[0].tile == 1 && turned[0].ruling.turn == 0));
  CHECK((turned[1].tile == 0 && turned[1].ruling.turn == 1));
}

TEST_CASE("second looks separate a defect, a transient and our own bug", "[soak]") {
  const Ruling accused{{1}, kRight, ""};
  const auto defect = conclude(accused, std::vector{look(0), look(100), look(0)});
  REQUIRE(defect.size() == 1);
  CHECK(brief(defect[0]) == "1 FAIL HARDWARE");
  CHECK(defect[0].cause == "the others contradict it; reproduces 100 of 100, the others 0 of 200");
  const auto transient = conclude(accused, std::vector{look(0), look(0), look(0)});
  CHECK(transient[0].outcome == Outcome::fail);
  CHECK(transient[0].cause.find("reproduces 0 of 100") != std::string::npos);
  const auto all = conclude(accused, std::vector{look(3), look(100), look(2)});
  CHECK(brief(all[0]) == "-1 INCONCLUSIVE SOFTWARE");
  // a hash that disagrees though the data agree is software's
  std::vector looks{look(0), look(100)};
  looks[1].hash_disagrees = 1;
  const auto own = conclude(accused, looks);
  REQUIRE(own.size() == 1);
  CHECK(brief(own[0]) == "1 FAIL SOFTWARE");
}

TEST_CASE("where the vote decides nothing, the CPU's result or unsteadiness does", "[soak]") {
  const Ruling open{{}, {}, "two GPUs differ, both steadily"};
  const auto concluded = [&](std::vector<Look> looks) { return brief(conclude(open, looks)[0]); };
  CHECK(concluded({look(0, 0), look(0, 12)}) == "1 FAIL HARDWARE");
  CHECK(concluded({look(4, 0), look(0, 0)}) == "0 FAIL HARDWARE");
  CHECK(concluded({look(0, 0), look(0, 0)}) == "-1 INCONCLUSIVE SOFTWARE");
  CHECK(concluded({look(0, 1), look(0, 1)}) == "-1 INCONCLUSIVE SOFTWARE");
  const Ruling alone{{}, {}, "the result is not the known answer"};
  CHECK(brief(conclude(alone, std::vector{look(0, 3)})[0]) == "0 FAIL HARDWARE");
}

TEST_CASE("a wrong product is placed by what it is wrong with", "[soak]") {
  const Attempts never{100, 0};
  const Attempts always{100, 100};
  const Attempts all{20, 20};
  const auto placed = [&](const ProductAttempts& attempts) {
    const Placing placing = place_product(attempts, "SM");
    CHECK((placing.outcome == Outcome::fail && placing.class_ == Class::hardware));
    CHECK_FALSE(placing.action.empty());
    return placing;
  };
  CHECK(placed({never, {20, 0}, never, never, never}).culprit == Culprit::transient);
  const Placing sm = placed({always, all, {90, 81}, {90, 2}, always, 132, {17}});
  CHECK(sm.culprit == Culprit::processor);
  CHECK(
      sm.cause ==
      "SM 17: right without it, wrong without each of 131 others: wrong as it was 100 of 100 (any "
      "tile 20 of 20), at this place of the launch with other data 81 of 90, at other places 2 of "
      "90, with C elsewhere in memory 100 of 100");
  // Blocks come to other SMs in each launch: the tile is seldom wrong, and always any.
  CHECK(placed({never, all, {90, 1}, never, {100, 1}, 132, {17}}).culprit == Culprit::processor);
  for (const std::vector<int>& cured : {std::vector<int>{}, {17, 18}})
    CHECK_THAT(placed({always, all, never, never, always, 132, cured}).cause,
               ContainsSubstring("stays at its place of the launch, so at one SM: "));
  CHECK(placed({always, all, never, never, never}).culprit == Culprit::address);
  CHECK_THAT(placed({always, all, never, always, always}).cause,
             ContainsSubstring("follows the data to other places"));
  CHECK(placed({always, all, always, always, always}).culprit == Culprit::gpu);
  CHECK(placed({always, all, {}, {}, always}).culprit == Culprit::unknown);
  // One of ten other turns happens to bring the tile to the same SM.
  CHECK(placed({always, all, {90, 80}, {100, 10}, always}).culprit == Culprit::processor);
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

// Capsules: what is written is read again, and each key that is wrong is named.

TEST_CASE("a capsule comes back as it was written", "[soak]") {
  const test::TempFolder folder;
  const std::string path = write_capsule(folder / "new", "a", example());
  CHECK_THAT(path, EndsWith("/capsule-a.json"));
  CHECK(to_json(read_capsule(path)) == to_json(example()));
  Capsule unknown = example();
  unknown.expected_hash = unknown.found_hash = unknown.element = unknown.expected_bits =
      unknown.found_bits = std::nullopt;
  CHECK_FALSE(capsule_of(to_json(unknown), "").expected_hash);
}

TEST_CASE("a capsule of format 2 is replayed by its own hash, without a turn", "[soak]") {
  Json json = to_json(example());
  json["format"] = "shakedown product capsule 2";
  json.erase("turn");
  const Capsule old = capsule_of(json, "");
  CHECK((old.old_hash && old.turn == 0 && old.expected_hash == 1));
  CHECK_FALSE(capsule_of(to_json(example()), "").old_hash);
  std::vector<std::byte> tile(kTileEdge * kTileEdge * 2);
  for (std::size_t i = 0; i < tile.size(); ++i) tile[i] = static_cast<std::byte>(i * i % 251);
  CHECK(old_hash_of_tile(tile) == 0xD3054D0905332C22U);  // of the version that wrote format 2
}

TEST_CASE("a malformed capsule is refused by the name of the key", "[soak]") {
  for (const char* key :
       {"format", "seed", "operands", "type", "m", "n", "k", "algorithm", "turn", "tile"}) {
    CAPTURE(key);
    CHECK_THAT(refusal(key, nullptr),
               ContainsSubstring(std::string("c.json: ") + key + ": must be"));
    CHECK_THAT(refusal(key, -3), ContainsSubstring(std::string("c.json: ") + key + ": must be"));
  }
  CHECK_THAT(refusal("format", "shakedown product capsule 1"),
             ContainsSubstring("format: must be \"shakedown product capsule 3\" or \"shakedown "
                               "product capsule 2\"; replay another"));
  CHECK_THAT(refusal("m", 200), ContainsSubstring("m: must be a multiple of 128"));
  CHECK_THAT(refusal("tile", 6), ContainsSubstring("tile: must be a whole number from 0 to 5"));
  CHECK_THAT(refusal("seed", "0x12"), ContainsSubstring("seed: must be 0x and 16"));
  CHECK_THAT(refusal("type", "fp5"), ContainsSubstring("type: must be fp64"));
  CHECK_THAT(refusal("found_bits", 7), ContainsSubstring("found_bits: must be"));
  CHECK_THAT(refusal("circumstances", 7), ContainsSubstring("circumstances: must be"));
  CHECK_THROWS_AS(capsule_of(Json::array(), "c.json"), UsageError);
  CHECK_THROWS_AS(read_capsule("/nonexistent.json"), UsageError);
}

}  // namespace shakedown::node
