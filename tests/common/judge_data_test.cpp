// What the judge knows: limits, boards, references.
#include "common/judge/limits.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/judge/references.hpp"
#include "common/judge/series.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::judge {
namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

const std::string kBefore = R"({"sources": {"doc": "a document"}, "architectures": [
  {"architecture": "sm_90", "flop_per_cycle_sm": {"fp16": 4096}, "source": ["doc"], "date": "2026-11-25"}],
  "boards": [)";

Boards boards_of(const std::string& rows) { return Boards(kBefore + rows + "]}", "b.json"); }

Observation copied(const std::string& gpu, double gbs) {
  Observation o = {};
  o.metric = "memory/copy";
  o.unit = "GB/s";
  o.of = {Scope::gpu, gpu, {0}, {"n1"}, {gpu}, {}};
  o.board = "NVIDIA H200";
  o.pci_device_id = "10de:2335:10de:18be";
  o.conditions = {{"bytes", "1048576"}};
  o.samples = {gbs, gbs, gbs, gbs, gbs * 0.99};
  return o;
}

std::string file(const std::string& figures) {
  return R"({"name": "r", "pci_device_ids": ["10de:2335"], "models": ["NVIDIA H200"], "figures": [)" +
         figures + "]}";
}

/// A line of JSON as it is; keys alone are of a figure, "measured" and "published" with what these
/// need.
std::string figure_of(const std::string& line) {
  if (line[0] == '{') return line;
  const std::map<std::string, std::string> kinds{
      {"measured",
       R"("kind": "measured", "date": "2026-11-26", "units": 3, "conditions": {"bytes": 1048576})"},
      {"published", R"("kind": "published")"}};
  const std::string first = line.substr(0, line.find(','));
  const auto kind = kinds.find(first);
  return R"({"metric": "memory/copy", "unit": "GB/s", "value": 4200, "source": "x", )" +
         (kind == kinds.end() ? line : kind->second + line.substr(first.size())) + "}";
}

std::string text_of(const Limit& limit) {
  const auto or_none = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : "none";
  };
  return fmt::format("{}: rates {}, floor {}, spread {}, share {}, samples {}, least {}",
                     limit.metric, limit.rates.empty() ? "none" : limit.rates, limit.floor,
                     limit.spread, or_none(limit.share), limit.samples, or_none(limit.least));
}

std::string text_of(const std::optional<Board>& board) {
  if (!board) return "none";
  std::string text = fmt::format("{}{}, {} NVLinks, memory {:.0f} GB/s, PCIe {:.0f} GB/s,",
                                 board->name, board->known ? "" : " (unknown)",
                                 board->nvlinks ? std::to_string(*board->nvlinks) : "unknown",
                                 board->memory_gbs(), board->pcie_gbs);
  for (const auto& [type, flop] : board->flop_per_cycle_sm)
    text += fmt::format(" {} {}", type, flop);
  return text;
}

/// Of an observation of a copy, "path=far" and conditions changed.
std::string found_in(const References& references, std::istringstream& words) {
  Observation o = copied("GPU-1", 4200);
  for (std::string word; words >> word;) {
    const std::string key = word.substr(0, word.find('='));
    const std::string value = word.substr(key.size() + 1);
    if (key == "board")
      o.board = "NVIDIA " + value;
    else if (key == "pci")
      o.pci_device_id = value;
    else if (key == "unit")
      o.unit = value;
    else if (key == "path")
      o.path_class = value;
    else
      o.conditions[key] = value;
  }
  std::string missed;
  const ReferenceFigure* found = references.find(o, &missed);
  return found != nullptr ? found->kind : "none" + (missed.empty() ? "" : ": " + missed);
}

/// Of a case of judge_data.txt.
std::string answer_of(const std::string& given) {
  std::istringstream lines(given);
  std::string kind, data, answer;
  lines >> kind >> std::ws;
  std::vector<std::string> asked;
  const auto joined = [&](const std::string& line) {
    data += (data.empty() || kind == "limits" ? "" : ",") + line;
  };
  for (std::string line; std::getline(lines >> std::ws, line);) {
    if (line.starts_with("find ")) {
      asked.push_back(line.substr(5));
    } else if (kind == "boards" && line[0] != '{') {
      joined(R"({"architecture": "sm_90", "source": ["doc"], "date": "2026-11-25", )" + line + "}");
    } else {
      joined(kind == "figures" ? figure_of(line) : line);
    }
  }
  try {
    if (kind == "glob") {
      const std::size_t blank = data.find(' ');
      return matches(data.substr(0, blank), data.substr(blank + 1)) ? "matches" : "does not";
    }
    if (kind == "limits") {
      const Limits limits =
          data.empty() ? Limits::embedded() : Limits::embedded().with(data, "l.json");
      for (const std::string& metric : asked) {
        const Limit* found = limits.find(metric);
        answer += metric + ": " + (found == nullptr ? "none" : text_of(*found)) + "\n";
      }
    } else if (kind == "boards") {
      const Boards boards = data.empty() ? Boards::embedded() : boards_of(data);
      for (const std::string& line : asked) {  // ID, name, compute capability, between commas
        std::istringstream in(line);
        std::string id, name, capability;
        std::getline(in, id, ',');
        std::getline(in, name, ',');
        std::getline(in, capability);
        answer += line + ": " + text_of(boards.find(id, name, capability)) + "\n";
      }
    } else {
      const References references(
          {reference_of(kind == "reference" ? data : file(data), "r.json")});
      for (const std::string& line : asked) {
        std::istringstream words(line);
        answer += line + ": " + found_in(references, words) + "\n";
      }
    }
  } catch (const UsageError& error) {
    return error.what();
  }
  return answer;
}

}  // namespace

TEST_CASE("limits, boards and references, and what is refused of them", "[judge]") {
  test::check_transcript("tests/common/judge_data.txt", answer_of);
}

TEST_CASE("what judges has a class of rates, and what may fail says what to do", "[judge]") {
  const Limits& limits = Limits::embedded();
  for (const Limit& limit : limits.rows()) {
    INFO(limit.metric);
    CHECK((limit.warns || !limit.action.empty()));
    CHECK((!limit.warns || (limit.rates.empty() && !limit.share)));
    CHECK((limit.statistic == Statistic::best && !limit.warns) == (limit.looks == 3));
  }
}

TEST_CASE("a bar is of one metric or glob that there is", "[judge]") {
  Limits barred = Limits::embedded();
  barred.bar("collective/all_reduce/busbw", 400, std::nullopt);
  CHECK(barred.find("collective/all_reduce/busbw")->least == 400);
  CHECK_FALSE(barred.find("collective/all_gather/busbw")->least);
  CHECK_THROWS_AS(barred.bar("collective", 1, std::nullopt), UsageError);
}

TEST_CASE("a look's spread is that of all its resamples", "[judge]") {
  const std::vector<double> samples{10, 12, 11, 17, 13};
  const std::size_t n = samples.size();
  for (const auto& [statistic, less] :
       {std::pair{Statistic::median, true}, {Statistic::best, true}, {Statistic::best, false}}) {
    const double value = statistic_of(samples, statistic, less);
    double squares = 0;
    for (int code = 0; code < 3125; ++code) {
      std::vector<double> drawn(n);
      for (int i = 0, rest = code; i < 5; ++i, rest /= 5) drawn[i] = samples[rest % 5];
      squares += std::pow(statistic_of(drawn, statistic, less) / value - 1, 2) / 3125;
    }
    CHECK_THAT(look_spread(samples, statistic, less), WithinAbs(std::sqrt(squares), 1e-12));
  }
  CHECK(look_spread(samples, Statistic::last, true) == 0);
  CHECK(statistic_of(samples, Statistic::last, true) == 13);
  // Of an even number between those of its neighbours, of many as the normal distribution has it.
  std::vector<double> many(2000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = 1 + static_cast<double>(i) / 2000;
  CHECK_THAT(look_spread(many, Statistic::median, true),
             WithinAbs(0.5 / std::sqrt(2000.0) / 1.5, 1e-5));
  CHECK(std::isnan(look_spread({}, Statistic::median, true)));
  CHECK(std::isnan(statistic_of(std::vector{1.0, std::nan("")}, Statistic::best, true)));
  CHECK(std::isnan(look_spread(std::vector{0.0, 0.0}, Statistic::median, true)));
}

TEST_CASE("a reference of what passed has medians of units and their spread", "[judge]") {
  std::vector<Observation> good{copied("GPU-1", 4100), copied("GPU-2", 4200), copied("GPU-3", 3000),
                                copied("GPU-3", 4300)};
  good.back().look = 2;  // which cleared it
  good[0].versions = good[1].versions = {{"driver", "580"}};
  const Reference reference =
      recorded(good, Limits::embedded(), "site", "job 1", false, "2026-11-26");
  REQUIRE(reference.figures.size() == 1);
  const ReferenceFigure& one = reference.figures.front();
  CHECK(one.value == 4200);
  CHECK(one.units == 3);
  CHECK_THAT(one.between, WithinRel(std::sqrt((std::pow(std::log(4200 / 4100.), 2) +
                                               std::pow(std::log(4300 / 4200.), 2)) /
                                              2),
                                    0.02));
  CHECK(one.versions.empty());  // one did not say
  CHECK(reference.pci_device_ids == Texts{"10de:2335"});
  const Reference read = reference_of(text_of(reference), "r.json");
  CHECK(text_of(read) == text_of(reference));
  CHECK(References({read}).find(copied("GPU-9", 1)) != nullptr);

  good.resize(2);
  CHECK_THROWS_WITH(recorded(good, Limits::embedded(), "site", "job 1"),
                    ContainsSubstring("2 of NVIDIA H200 passed"));
  const Reference few = recorded(good, Limits::embedded(), "site", "job 1", true);
  CHECK(few.figures.front().units == 2);
  CHECK_THAT(few.figures.front().note, ContainsSubstring("not known"));
  good.push_back(copied("GPU-4", 4200));
  good.back().board = "NVIDIA H100";
  CHECK_THROWS_WITH(recorded(good, Limits::embedded(), "site", "job 1"),
                    ContainsSubstring("several boards"));
}

TEST_CASE("a time's line over the clock, where the clock has a range", "[judge]") {
  std::vector<Observation> good;
  for (const double clock : {1500., 1540., 1600., 1700.}) {
    Observation o = copied("GPU-" + std::to_string(clock), 0);
    o.metric = "train/compute_ms";
    o.unit = "ms";
    o.samples.assign(30, 30000 / clock + 2);
    o.seen.clock_mhz = clock;
    good.push_back(o);
  }
  const auto figure = [&] { return recorded(good, Limits::embedded(), "s", "j").figures.front(); };
  REQUIRE(figure().line);
  CHECK_THAT(figure().line->a, WithinRel(30000, 1e-9));
  CHECK_THAT(figure().line->b, WithinRel(2, 1e-6));
  CHECK(figure().between < 1e-9);  // the clock explains all of it
  good.pop_back();
  good.back().seen.clock_mhz = 1550;
  CHECK_FALSE(figure().line);
  CHECK(figure().between > 0.02);
}

TEST_CASE("records that the user names are a reference, of what was measured right", "[judge]") {
  const test::TempFolder folder;
  const auto write = [&](const char* name, const std::vector<Observation>& all) {
    std::ofstream out(folder.touch(name));
    out << R"({"kind":"run","run_id":"2026-11-20T01:02:03Z-n1-1"})" << '\n';
    for (const Observation& each : all) {
      Json line{{"kind", "metric"}, {"run_id", "2026-11-20T01:02:03Z-n1-1"}};
      out << json_text(merged(line, record_of(each))) << '\n';
    }
  };
  std::vector<Observation> all{copied("GPU-1", 4100), copied("GPU-2", 4200), copied("GPU-3", 9000),
                               copied("GPU-4", 9000), copied("GPU-5", 9000)};
  all[2].check = Check::wrong;
  all[3].disturbed_by = "other processes: pid 9";
  all[4].taken = Taken::timed_out;
  write("a.jsonl", {all[0], all[2], all[3], all[4]});
  write("run/b.jsonl", {all[1]});
  const std::string notes = folder.write("notes.json", "{}");
  const References references = References::load(folder.path);
  CHECK(references.named());
  const ReferenceFigure* found = references.find(copied("GPU-9", 1));
  REQUIRE(found != nullptr);
  CHECK(found->units == 2);
  CHECK(found->value == 4150);
  CHECK(found->date == "2026-11-20");
  CHECK_THROWS_WITH(References::load(notes), ContainsSubstring("name is missing"));
}

}  // namespace shakedown::judge
