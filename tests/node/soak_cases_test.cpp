// What a soak does when, who is wrong and where that is placed, and its verdicts, from made-up
// votes, second looks, attempts and windows: soak_cases.txt has the cases. Capsules.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "common/usage_error.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/findings.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/power.hpp"
#include "launch/node/soak/schedule.hpp"
#include "tests/catch.hpp"
#include "tests/node/soaked.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::node {
namespace {

TileRecord steady(std::uint64_t hash) { return {hash, 0}; }
TileRecord unsteady(std::uint64_t hash) { return {hash, 3}; }

using Words = std::vector<std::string>;

/// "a b~ | a a": by GPU the hashes of its turns, one of which is unsteady.
std::string voted(const Words& words) {
  std::vector<TileRecord> votes;
  std::uint32_t gpus = 1;
  for (const std::string& word : words)
    if (word == "|")
      ++gpus;
    else
      votes.push_back(word.ends_with('~') ? unsteady(word[0]) : steady(word[0]));
  const Ruling ruling = vote(votes, static_cast<std::uint32_t>(votes.size()) / gpus);
  if (ruling.agreed()) return "agreed";
  std::string text = ruling.undecided.empty()
                         ? fmt::format("wrong: {}", fmt::join(ruling.wrong, " "))
                         : ruling.undecided;
  text += ruling.right ? fmt::format("; right: {}", static_cast<char>(*ruling.right)) : "";
  return fmt::format("{}; turn {}{}", text, ruling.turn, ruling.by_turns ? ", by turns" : "");
}

/// "3:12#": 3 of 100 re-runs differ, 12 elements are beyond the CPU's bound, the hash disagrees.
Look look_of(const std::string& word) {
  Look look{100, 0, word.ends_with('#') ? 1 : 0, -1, 0};
  std::sscanf(word.c_str(), "%d:%d", &look.differing, &look.beyond_bound);
  return look;
}

std::string text_of(const Judgement& one) {
  CHECK((one.outcome == Outcome::pass || (one.class_ && !one.action.empty())));
  return fmt::format("{} {}: {} -> {}", name_of(one.outcome.value()), name_of(one.class_.value()),
                     one.cause, one.action);
}

/// "wrong=1 LOOK...", "undecided LOOK...", or "refuted=-1,17 LOOK...": a tile of each juror.
std::string concluded(const Words& words) {
  std::vector<Look> looks;
  for (std::size_t i = 1; i < words.size(); ++i) looks.push_back(look_of(words[i]));
  const std::string given = words[0].substr(words[0].find('=') + 1);
  std::vector<Conclusion> conclusions;
  if (words[0].starts_with("refuted"))
    conclusions = refuted_once(Json::parse("[" + given + "]").get<std::vector<double>>(), looks);
  else if (words[0].starts_with("wrong"))
    conclusions = conclude({{std::stoi(given)}, 7, ""}, looks);
  else
    conclusions = conclude({{}, {}, "two GPUs differ, both steadily"}, looks);
  std::vector<std::string> lines;
  for (const Conclusion& one : conclusions)
    lines.push_back(fmt::format("{} {}", one.juror, text_of(one)));
  return lines.empty() ? "nothing yet" : fmt::format("{}", fmt::join(lines, "\n"));
}

std::string replayed(const Words& words) {
  std::vector<Look> looks;
  std::vector<std::string> lines;
  for (const std::string& word : words) looks.push_back(look_of(word));
  Capsule capsule;
  capsule.expected_hash = 7;
  for (const Verdict& verdict : verdicts_of(looks, capsule, {"GPU-a", "GPU-b"})) {
    CHECK((verdict.outcome == Outcome::pass || (verdict.class_ && !verdict.action.empty())));
    lines.push_back(line_of(verdict));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

/// "same=81/90": wrong in 81 of 90.
class Tried {
 public:
  explicit Tried(const Words& words) : words_(words) {}
  Attempts operator()(const std::string& name) const {
    Attempts attempts;
    std::sscanf(value(name).c_str(), "%d/%d", &attempts.wrong, &attempts.tried);
    return attempts;
  }
  std::vector<int> numbers(const std::string& name) const {
    return Json::parse("[" + value(name) + "]").get<std::vector<int>>();
  }

 private:
  std::string value(const std::string& name) const {
    for (const std::string& word : words_)
      if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
    return "";
  }
  Words words_;
};

std::string placed_product(const Words& words) {
  const Tried tried(words);
  const std::vector<int> cured = tried.numbers("cured");
  return text_of(place_product({tried("same"), tried("any"), tried("place"), tried("element"),
                                tried("elsewhere"), 132, cured},
                               "SM"));
}

std::string placed_error(const Words& words) {
  const Tried tried(words);
  return text_of(
      place_error({tried("same"), tried("SMs"), tried("addresses"), tried("GPUs")}, "SM", 17));
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
  return capsule;
}

/// "KEY VALUE": in place of what the example has; without a value the key is missing.
std::string refused(const Words& words) {
  Json json = to_json(example());
  json.erase(words[0]);
  if (words.size() > 1)
    json[words[0]] = Json::parse(fmt::format("{}", fmt::join(words.begin() + 1, words.end(), " ")));
  return test::error_of([&] { capsule_of(json, "c.json"); });
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

/// "SHAPES LOADS alone|together CYCLE", of products of fp32 and bf16.
std::string phases(const Words& words) {
  std::vector<std::string> names;
  for (const Phase& phase : phases_of_cycle(split(words[0], ','), split(words[1], ','),
                                            {ProductType::fp32, ProductType::bf16},
                                            words[2] == "alone", std::stoi(words[3])))
    names.push_back(phase.name());
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, "\n"));
}

/// "FIRST-END RANK FIELD VALUE": in these of ten windows; or "RANK FACT VALUE" of the rank.
void change(std::vector<Window>& windows, std::vector<RankIdentity>& ranks, const Words& words) {
  if (words.size() == 3) {
    RankIdentity& rank = ranks.at(std::stoul(words[0]));
    if (words[1] == "stalled") rank.stalled = words[2];
    if (words[1] == "lacks_ecc") rank.lacks_ecc = true;
    if (words[1] == "remap_pending") rank.remap_pending = true;
    return;
  }
  std::size_t first = 0, end = 0;
  std::sscanf(words[0].c_str(), "%zu-%zu", &first, &end);
  const double value = words[3] == "?" ? kUnknown : std::stod(words[3]);
  for (; first < end; ++first) {
    RankWindow& rank = windows.at(first).ranks.at(std::stoul(words[1]));
    LoadCount& products = rank.counts[0];
    const std::map<std::string, double*> fields{{"slowdown", &rank.hardware_slowdown_share},
                                                {"thermal", &rank.thermal_share},
                                                {"ecc_uncorrected", &rank.errors.ecc_uncorrected},
                                                {"ecc_corrected", &rank.errors.ecc_corrected},
                                                {"nvlink_errors", &rank.errors.nvlink_errors}};
    if (words[2] == "checked")
      products.checked = static_cast<std::uint64_t>(value);
    else if (words[2] == "wrong")
      products.wrong = static_cast<std::uint64_t>(value);
    else
      *fields.at(words[2]) = value;
  }
}

/// "memory JSON..." has by rank the share, passes, patterns done, patterns and what is done of a
/// pass.
void tell(JobFacts& facts, const Words& words) {
  if (words[0] == "stopped") facts.stopped_by = words[1];
  for (std::size_t rank = 1; words[0] == "memory" && rank < words.size(); ++rank) {
    const Json of = Json::parse(words[rank]);
    facts.memory.push_back({of[0], of[1], of[2], of[3], of[4]});
  }
}

/// "LOADS; CHANGE; FACT": what is found of the ranks, then of the job, stopped after 2 of 5
/// minutes.
std::string judged(const Words& words) {
  std::string line = fmt::format("{}", fmt::join(words, " "));
  std::vector<Window> windows = test::windows(10);
  std::vector<RankIdentity> ranks = test::kRanks;
  JobFacts facts;
  const std::vector<std::string> parts = split(line, ';');
  for (const LoadKind kind : kLoads)
    if (parts[0].find(name_of(kind)) != std::string::npos) facts.requested.push_back(kind);
  facts.minutes = 2;
  facts.minutes_requested = 5;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Words part = split(parts[i].substr(1), ' ');
    if (std::isdigit(part[0][0]) != 0)
      change(windows, ranks, part);
    else
      tell(facts, part);
  }
  std::vector<Verdict> verdicts = judge_soak(windows, {}, ranks);
  verdicts.push_back(judge_job(windows, verdicts, facts));
  std::vector<std::string> lines;
  for (const Verdict& verdict : verdicts) {
    CHECK((verdict.outcome != Outcome::fail || verdict.name == "soak" ||
           (verdict.class_ && !verdict.action.empty())));
    lines.push_back(line_of(verdict));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

/// "SM|core RANKS JSON": of a type its products, and turns of 8192 x 8192 elements.
std::string power(const Words& words) {
  const Json json = Json::parse(fmt::format("{}", fmt::join(words.begin() + 2, words.end(), " ")));
  Checked checked;
  for (const ProductType type : soaked(all_product_types()))
    if (json.contains(name_of(type)))
      checked.products[type] = {json[name_of(type)][0], json[name_of(type)][1], 8192. * 8192};
  checked.processors = json.value("processors", 0.);
  checked.lanes = json.value("lanes", 0.);
  checked.probes = json.value("probes", 0.);
  checked.memory_share = json.value("memory_share", 0.);
  if (checked.memory_share > 1) checked.memory_share = kUnknown;
  checked.memory_passes = json.value("memory_passes", 0.);
  checked.copied_words = json.value("copied_words", 0.);
  checked.link_words = json.value("link_words", 0.);
  const std::string line = line_of(power_of(checked), words[0], std::stoul(words[1]));
  return line.empty() ? "nothing" : line;
}

}  // namespace

TEST_CASE("what a soak does, and concludes", "[soak][placing][power][closed]") {
  const std::map<std::string, std::string (*)(const Words&)> answers{
      {"vote", voted},         {"look", concluded},
      {"replay", replayed},    {"product", placed_product},
      {"error", placed_error}, {"capsule", refused},
      {"cycle", phases},       {"judge", judged},
      {"power", power}};
  test::check_transcript("tests/node/soak_cases.txt", [&](const std::string& given) {
    std::istringstream line(given);
    std::string kind, word;
    Words words;
    for (line >> kind; line >> word;) words.push_back(word);
    return answers.at(kind)(words);
  });
}

TEST_CASE("no error passes, wherever it was placed", "[placing]") {
  constexpr Attempts kTried[] = {{}, {100, 0}, {100, 7}};
  for (const Attempts same : kTried)
    for (const Attempts processors : kTried)
      for (const Attempts addresses : kTried)
        for (const Attempts gpus : kTried) {
          const Judgement placing = place_error({same, processors, addresses, gpus}, "SM", 17);
          CHECK(placing.outcome == (gpus.wrong > 0 ? Outcome::inconclusive : Outcome::fail));
          CHECK((placing.class_ && !placing.action.empty()));
        }
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
  CHECK(digest_of(records[0]).first != digest_of(records[1]).first);
  CHECK(digest_of(records[2]).differing == 3);
  // Two tiles in three turns: the dissent of the first turn comes first.
  const std::vector<std::vector<TileRecord>> alone{
      {steady(1), steady(7), steady(9), steady(2), steady(1), steady(2)}};
  const auto turned = vote_by_tile(alone, 3).findings;
  REQUIRE(turned.size() == 2);
  CHECK((turned[0].tile == 1 && turned[0].ruling.turn == 0));
  CHECK((turned[1].tile == 0 && turned[1].ruling.turn == 1));
}

// Capsules: what is written is read again, and each key that is wrong is named.

TEST_CASE("a capsule comes back as it was written", "[soak]") {
  const test::TempFolder folder;
  const std::string path = write_capsule(folder / "new", "a", to_json(example()));
  CHECK_THAT(path, EndsWith("/capsule-a.json"));
  CHECK(to_json(read_capsule(path)) == to_json(example()));
  Capsule unknown = example();
  unknown.expected_hash = unknown.found_hash = unknown.element = unknown.expected_bits =
      unknown.found_bits = std::nullopt;
  CHECK_FALSE(capsule_of(to_json(unknown), "").expected_hash);
  CHECK_THROWS_AS(capsule_of(Json::array(), "c.json"), UsageError);
  CHECK_THROWS_AS(read_capsule("/nonexistent.json"), UsageError);
}

}  // namespace shakedown::node
