#include "common/judge/references.hpp"

#include <unistd.h>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "tests/catch.hpp"

namespace shakedown::judge {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

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

std::string figure(const std::string& keys) {
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

TEST_CASE("a reference is of the board, metric, unit, path and all conditions", "[judge]") {
  const References references(
      {reference_of(file(figure(kPublished) + "," + figure(kMeasured)), "r.json")});
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
  refused(file(figure(kMeasured + R"(, "vaule": 1)")),
          "figure 1 \"memory/copy\": unknown key vaule");
  refused(file(figure(R"("kind": "measured", "units": 3)")), "date: YYYY-MM-DD");
  refused(file(figure(R"("kind": "measured", "date": "2026-11-26")")), "units is missing");
  refused(file(figure(R"("kind": "guessed")")), "kind: guessed is not one of");
  refused(file(figure(kMeasured + R"(, "between": 2)")), "between: 0 to 1");
  refused(file(figure(kMeasured + R"(, "line": {"a": 1})")), "line: ");
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

TEST_CASE("a reference of what passed: medians of units, their spread, and its own text",
          "[judge]") {
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
  CHECK(reference.pci_device_ids == std::vector<std::string>{"10de:2335"});
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
  const auto line = recorded(good, Limits::embedded(), "s", "j").figures.front().line;
  REQUIRE(line);
  CHECK_THAT(line->a, WithinRel(30000, 1e-9));
  CHECK_THAT(line->b, WithinRel(2, 1e-6));
  good.pop_back();
  good.back().seen.clock_mhz = 1550;
  CHECK_FALSE(recorded(good, Limits::embedded(), "s", "j").figures.front().line);
}

TEST_CASE("records that the user names are a reference, of what was measured right", "[judge]") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("references_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "run");
  const auto write = [&](const char* name, const std::vector<Observation>& all) {
    std::ofstream out(folder / name);
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
  std::ofstream(folder / "notes.json") << "{}";
  const References references = References::load(folder.string());
  CHECK(references.named());
  const ReferenceFigure* found = references.find(copied("GPU-9", 1));
  REQUIRE(found != nullptr);
  CHECK(found->units == 2);
  CHECK(found->value == 4150);
  CHECK(found->date == "2026-11-20");
  CHECK_THROWS_WITH(References::load((folder / "notes.json").string()),
                    ContainsSubstring("name is missing"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("the references that the programs carry can be read", "[judge]") {
  CHECK_FALSE(References::embedded().empty());
  CHECK_FALSE(References::embedded().named());
  for (const Reference& each : References::embedded().all())
    CHECK_FALSE(each.pci_device_ids.empty());
}

}  // namespace shakedown::judge
