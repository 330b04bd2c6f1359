// What the judge knows: limits, boards, references.
#include "common/judge/limits.hpp"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "common/judge/references.hpp"
#include "common/judge/series.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

namespace shakedown::judge {
namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

const std::string kBefore = R"({"sources": {"doc": "a document"}, "architectures": [
  {"architecture": "sm_90", "flop_per_cycle_sm": {"fp16": 4096}, "source": ["doc"], "date": "2026-11-25"}],
  "boards": [)";

Boards boards_of(const std::string& rows) { return Boards(kBefore + rows + "]}", "b.json"); }

std::string row_of(const std::string& keys) {
  return R"({"architecture": "sm_90", "source": ["doc"], "date": "2026-11-25", )" + keys + "}";
}

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

std::string figure_text(const std::string& keys) {
  return R"({"metric": "memory/copy", "unit": "GB/s", "value": 4200, "source": "x", )" + keys + "}";
}

std::string file(const std::string& figures) {
  return R"({"name": "r", "pci_device_ids": ["10de:2335"], "models": ["NVIDIA H200"], "figures": [)" +
         figures + "]}";
}

const std::string kMeasured =
    R"("kind": "measured", "date": "2026-11-26", "units": 3, "conditions": {"bytes": 1048576})";
const std::string kPublished = R"("kind": "published")";

}  // namespace

TEST_CASE("a glob's star is any text", "[judge]") {
  CHECK(matches("collective/*/busbw", "collective/all_reduce/busbw"));
  CHECK(matches("*", ""));
  CHECK(matches("a*b*c", "a/b/b/c"));
  CHECK_FALSE(matches("a*b", "a/b/c"));
  CHECK_FALSE(matches("memory/copy", "memory/copy2"));
}

TEST_CASE("what judges has a class of rates, and what may fail says what to do", "[judge]") {
  const Limits& limits = Limits::embedded();
  CHECK(limits.find("product/fp8/flop_per_cycle_sm")->rates == "products");
  CHECK(limits.find("product/int8/flop_per_cycle_sm")->spread >
        limits.find("product/fp16/flop_per_cycle_sm")->spread);
  CHECK(limits.find("collective/all_reduce/busbw")->rates == "collectives");
  CHECK(std::isinf(limits.find("product/fp16/tflops")->floor));
  CHECK(limits.find("memory/cpy") == nullptr);
  for (const Limit& limit : limits.rows()) {
    INFO(limit.metric);
    CHECK((limit.warns || !limit.action.empty()));
    CHECK((!limit.warns || (limit.rates.empty() && !limit.share)));
    CHECK((limit.statistic == Statistic::best && !limit.warns) == (limit.looks == 3));
  }
}

TEST_CASE("a user's limits change only the keys that they name", "[judge]") {
  const Limits limits = Limits::embedded().with(
      R"([{"metric": "memory/*", "floor": 0.1}, {"metric": "memory/copy", "share": null},
          {"metric": "product/{fp16,bf16}/*", "samples": 7}])",
      "l.json");
  CHECK(limits.find("memory/copy")->floor == 0.1);  // of both rows
  CHECK_FALSE(limits.find("memory/copy")->share);
  CHECK(limits.find("memory/read")->share == 0.75);
  CHECK(limits.find("memory/read")->spread == 0.01);
  CHECK(limits.find("product/bf16/clock_mhz")->samples == 7);
  CHECK(limits.find("product/bf16/clock_mhz")->floor == 0.06);
  CHECK(limits.find("product/fp32/clock_mhz")->samples == 5);
  Limits barred = limits;
  barred.bar("collective/all_reduce/busbw", 400, std::nullopt);
  CHECK(barred.find("collective/all_reduce/busbw")->least == 400);
  CHECK_FALSE(barred.find("collective/all_gather/busbw")->least);
  CHECK_THROWS_AS(barred.bar("collective", 1, std::nullopt), UsageError);
}

TEST_CASE("an error in the limits names file, row and key", "[judge]") {
  const auto refused = [](const std::string& rows, const std::string& with) {
    CHECK_THROWS_WITH(Limits::embedded().with(rows, "l.json"),
                      ContainsSubstring("l.json") && ContainsSubstring(with));
  };
  refused(R"([{"metric": "memory/copy"}, {"metric": "memory/copy", "flor": 1}])",
          "limit 2 \"memory/copy\": unknown key flor");
  refused(R"([{"metric": "memory/cpy", "floor": 1}])", "matches none");
  refused(R"([{"metric": "memory/copy", "floor": -1}])", "floor: -1 is less than 0");
  refused(R"([{"metric": "memory/copy", "floor": "1"}])", "floor: a number");
  refused(R"([{"metric": "memory/copy", "share": 75}])", "share: more than 0 and at most 1");
  refused(R"([{"metric": "memory/copy", "samples": 1.5}])", "samples: a whole number");
  refused(R"([{"metric": "memory/copy", "class": "hard"}])", "class: hard is not one of HARDWARE");
  refused(R"([{"metric": "memory/copy", "least": 2, "most": 1}])", "least: 2 is above most, 1");
  refused(R"([{"floor": 1}])", "metric is missing");
  refused(R"({"metric": "memory/copy"})", "a list");
  refused("[", "no JSON");
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

TEST_CASE("a board is found by subsystem, device, name, then architecture", "[judge]") {
  const Boards boards =
      boards_of(row_of(R"("names": ["One"], "pci_device_ids": ["10de:1"], "sms": 1)") + "," +
                row_of(R"("names": ["Two"], "pci_device_ids": ["10de:1:10de:2"], "sms": 2)"));
  CHECK(boards.find("10de:1:10de:2", "One")->name == "Two");
  CHECK(boards.find("10de:1:10de:3", "Two")->name == "One");
  CHECK(boards.find("10de:1", "Two")->name == "One");
  CHECK(boards.find("10de:12", "Two")->name == "Two");  // another device
  CHECK(boards.find("", "Two", "9.0")->known);
  const auto unknown = boards.find("10de:9", "Three", "9.0");
  REQUIRE(unknown);
  CHECK_FALSE(unknown->known);
  CHECK(unknown->name == "sm_90");
  CHECK(unknown->flop_per_cycle_sm.at("fp16") == 4096);
  CHECK_FALSE(boards.find("10de:9", "Three", "9.9"));
  CHECK_FALSE(boards.find("", "", ""));
}

TEST_CASE("an error in the table of boards names file, row and key", "[judge]") {
  const auto refused = [](const std::string& keys, const std::string& with) {
    CHECK_THROWS_WITH(boards_of(row_of(keys)),
                      ContainsSubstring("b.json: board 1") && ContainsSubstring(with));
  };
  refused(R"("names": ["A"], "smms": 1)", "unknown key smms");
  refused(R"("names": ["A"], "sms": "1")", "sms: a number");
  refused(R"("pci_device_ids": ["10de:1"])", "name is missing");
  CHECK_THROWS_WITH(boards_of(R"({"names": ["A"], "architecture": "sm_90", "date": "2026"})"),
                    ContainsSubstring("source is missing"));
  CHECK_THROWS_WITH(
      boards_of(R"({"names": ["A"], "architecture": "sm_90", "source": ["x"], "date": "2026"})"),
      ContainsSubstring("source: x is not in sources"));
  CHECK_THROWS_WITH(boards_of(row_of(R"("names": ["A"], "pci_device_ids": ["1"])") + "," +
                              row_of(R"("names": ["B"], "pci_device_ids": ["1"])")),
                    ContainsSubstring("1 is A's as well"));
}

TEST_CASE("the boards that are known: links, memory and rates of the data sheets", "[judge]") {
  const Boards& boards = Boards::embedded();
  const auto links = [&](const char* id) {
    return boards.find(std::string("10de:") + id, "")->nvlinks;
  };
  for (const char* id : {"3182", "2941", "31c2", "2329", "232c", "2330", "2335", "2901"})
    CHECK(links(id) == 18);  // B300, GB200, GB300, H20, H20-3e, H100, H200, B200
  CHECK(links("20b2") == 12);
  CHECK(links("20f3") == 8);   // A800
  CHECK_FALSE(links("2321"));  // H100 NVL: by bridge
  CHECK_FALSE(links("2342"));  // GH200: by system
  const auto h200 = *boards.find("10de:2335:10de:18be", "");
  CHECK_THAT(h200.memory_gbs(), Catch::Matchers::WithinRel(4814.0, 1e-3));
  CHECK_THAT(h200.pcie_gbs, Catch::Matchers::WithinRel(63.0, 1e-2));
  CHECK(boards.find("", "NVIDIA GB200")->pcie_gbs == 450);  // C2C
  const auto rate = [&](const char* model, const char* type) {
    return boards.find("", model)->flop_per_cycle_sm.at(type);
  };
  CHECK(rate("NVIDIA H20", "fp16") == 1024);  // cut on purpose
  CHECK(rate("NVIDIA GeForce RTX 4090", "bf16") == 512);
  CHECK(rate("NVIDIA L40S", "bf16") == 1024);
  CHECK(rate("NVIDIA H100 80GB HBM3", "fp64") == 256);  // by tensor cores
  CHECK_FALSE(boards.find("", "NVIDIA B300 SXM6 AC")->flop_per_cycle_sm.contains("int8"));
  CHECK(boards.find("", "another", "9.0")->flop_per_cycle_sm.at("fp16") == 4096);
  CHECK(std::isnan(boards.find("", "another", "9.0")->memory_gbs()));
}

TEST_CASE("a reference is of the board, metric, unit, path and all conditions", "[judge]") {
  const References references(
      {reference_of(file(figure_text(kPublished) + "," + figure_text(kMeasured)), "r.json")});
  std::string missed = "?";
  const auto kind = [&](const Observation& o) {
    const ReferenceFigure* found = references.find(o, &missed);
    return found == nullptr ? "none" : found->kind;
  };
  Observation o = copied("GPU-1", 4200);
  CHECK(kind(o) == "measured");
  o.pci_device_id = "";  // by the name
  CHECK(kind(o) == "measured");
  o.board = "NVIDIA H100";
  CHECK(kind(o) == "none");
  CHECK(missed == "");
  o = copied("GPU-1", 4200);
  o.unit = "ms";
  CHECK(kind(o) == "none");
  o = copied("GPU-1", 4200);
  o.path_class = "far";
  o.conditions["bytes"] = "4096";
  o.conditions["data"] = "zeros";
  CHECK(kind(o) == "none");
  CHECK(missed ==
        "path far, reference none; bytes 4096, reference 1048576; data zeros, reference none");
}

TEST_CASE("an error in a reference names file, figure and key", "[judge]") {
  const auto refused = [](const std::string& text, const std::string& with) {
    CHECK_THROWS_WITH(reference_of(text, "r.json"),
                      ContainsSubstring("r.json") && ContainsSubstring(with));
  };
  refused(file(figure_text(kMeasured + R"(, "vaule": 1)")),
          "figure 1 \"memory/copy\": unknown key vaule");
  refused(file(figure_text(R"("kind": "measured", "units": 3)")), "date: YYYY-MM-DD");
  refused(file(figure_text(R"("kind": "measured", "date": "2026-11-26")")), "units is missing");
  refused(file(figure_text(R"("kind": "guessed")")), "kind: guessed is not one of");
  refused(file(figure_text(kMeasured + R"(, "between": 2)")), "between: 0 to 1");
  refused(file(figure_text(kMeasured + R"(, "line": {"a": 1})")), "line: ");
  refused(file(R"({"metric": "m", "unit": "u", "value": 1, "kind": "published"})"),
          "source is missing");
  refused(file(R"({"metric": "m", "unit": "u", "value": 0, "kind": "published", "source": "s"})"),
          "value: more than 0");
  refused(file(R"({"metric": "compute/fp16/burst", "unit": "u", "value": 1, "source": "s", )" +
               kMeasured + "}"),
          "nothing measures it");
  refused(R"({"name": "r", "devices": ["NVIDIA H200"], "figures": []})", "older version");
  refused(R"({"name": "r", "figures": []})", "models is missing");
  CHECK_THROWS_AS(References::load("/nowhere"), UsageError);
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

TEST_CASE("the references that the programs carry can be read", "[judge]") {
  CHECK_FALSE(References::embedded().empty());
  CHECK_FALSE(References::embedded().named());
  for (const Reference& each : References::embedded().all())
    CHECK_FALSE(each.pci_device_ids.empty());
}

}  // namespace shakedown::judge
