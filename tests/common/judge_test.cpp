// The judge: judge.txt has what it makes of observations.
#include "common/judge/judge.hpp"
#include "common/usage_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/transcript.hpp"

using namespace shakedown;
using namespace shakedown::judge;

namespace {

struct Metric {
  const char *name, *metric, *unit;
};
constexpr Metric kMetrics[] = {{"cycles", "product/fp16/flop_per_cycle_sm", "FLOP/cycle/SM"},
                               {"clock", "product/fp16/clock_mhz", "MHz"},
                               {"copy", "memory/copy", "GB/s"},
                               {"host_link", "host_link/to_device/alone", "GB/s"},
                               {"compute", "train/compute_ms", "ms"},
                               {"step", "train/step_ms", "ms"},
                               {"busbw", "collective/all_reduce/busbw", "GB/s"},
                               {"latency", "collective/all_reduce/latency", "us"},
                               {"sms", "setting/sms", "SMs"},
                               {"link", "link/copy_engine/one_way", "GB/s"},
                               {"nccl_link", "link/nccl/one_way", "GB/s"}};
constexpr const char* kH100 = "NVIDIA H100 80GB HBM3";

const Metric& metric_of(const std::string& name) {
  return *std::find_if(std::begin(kMetrics), std::end(kMetrics),
                       [&](const Metric& one) { return one.name == name; });
}

/// "4001/1.03".
double number_of(const std::string& text) {
  const std::size_t slash = text.find('/');
  return std::stod(text) / (slash == text.npos ? 1 : std::stod(text.substr(slash + 1)));
}

/// As many samples as any limit needs, a thousandth apart.
std::vector<double> around(double value) {
  std::vector<double> samples;
  for (int i = 0; i < 40; ++i) samples.push_back(value * (1 + 1e-4 * (i % 3 - 1)));
  return samples;
}

/// "gpu1" of host n1, "n2" (a node), "n1,n2" (a group), "0->1" (a pair, of ranks).
Subject subject_of(const std::string& name) {
  if (name.starts_with("gpu")) {
    const int gpu = std::stoi(name.substr(3));
    return {Scope::gpu, "GPU-n1" + name.substr(3),   {gpu},
            {"n1"},     {"GPU-n1" + name.substr(3)}, {"serial"}};
  }
  const std::size_t arrow = name.find("->"), comma = name.find(',');
  if (comma != name.npos)
    return {Scope::group, name, {0, 1}, {name.substr(0, comma), name.substr(comma + 1)}, {}, {}};
  if (arrow == name.npos) return {Scope::node, name, {0}, {name}, {}, {}};
  const std::string from = name.substr(0, arrow), to = name.substr(arrow + 2);
  return {Scope::link,
          name,
          {std::stoi(from), std::stoi(to)},
          {"n1", "n1"},
          {"GPU-" + from, "GPU-" + to},
          {"", ""}};
}

/// One word of an observation's line after its value.
void set(Observation& o, const std::string& key, const std::string& value) {
  if (key == "look") o.look = std::stoi(value);
  if (key == "run") o.run = value;
  if (key == "samples") o.samples.resize(std::stoul(value));
  if (key == "sample") o.samples[3] = std::stod(value);
  if (key == "spread")
    for (std::size_t i = 0; i < o.samples.size(); ++i)
      o.samples[i] *= 1 + std::stod(value) * static_cast<double>(i % 3);
  if (key == "taken") o.taken = Taken::timed_out;
  if (key == "check") o.check = value == "wrong" ? Check::wrong : Check::unchecked;
  if (key == "disturbed") o.disturbed_by = value;
  if (key == "manner") o.conditions["manner"] = value;
  if (key == "confidential") o.conditions[kConfidential] = value;
  if (key == "path") o.path_class = value;
  if (key == "between") o.of.hosts = {"n" + value.substr(0, 1), "n" + value.substr(1)};
  if (key == "clique") {
    o.conditions["clique"] = value;
    for (std::string& uuid : o.of.uuids) uuid += value;
  }
  if (key == "board" && value == "unknown") {
    o.board = "NVIDIA H999";
    o.pci_device_id = "10de:ffff";
  }
  if (key == "board" && value == "other") {
    o.board = "ACME 1";
    o.pci_device_id = "abcd:0001";
    o.compute_capability = "";
  }
  if (key == "board" && value == "GB200") {
    o.board = "NVIDIA GB200";
    o.pci_device_id = "10de:2941";
    o.peak = 1;  // of one lane
  }
  if (key == "cpu") {
    o.backend = "cpu";
    o.board = "processor";
    o.pci_device_id.clear();
  }
  if (key == "mhz") o.seen.clock_mhz = std::stod(value);
  if (key == "limit_w") o.seen.power_limit_w = std::stod(value);
  if (key == "reasons") o.seen.reasons = std::stoull(value, nullptr, 16);
  if (key == "cublas") o.versions = {{"cublas", value}};
}

struct Given {
  Evidence evidence;
  std::vector<ReferenceFigure> figures;
  Limits limits = Limits::embedded();
  Request request{"test", {}, false};

  References references() const {
    Reference made;
    made.name = "test";
    made.pci_device_ids = {"10de:2330"};
    made.models = {kH100};
    made.figures = figures;
    return References(figures.empty() ? std::vector<Reference>{} : std::vector{made});
  }
  Judgement judged() const {
    return judge::judge(evidence, references(), limits, Boards::embedded(), request);
  }

  /// A line of judge.txt.
  void take(const std::string& line) {
    std::istringstream in(line);
    std::string what, of, word;
    in >> what >> of;
    if (what == "reference") return take_reference(metric_of(of), in);
    if (what == "bar") {
      in >> word;
      return limits.bar(of == "busbw" ? "collective/*/busbw" : metric_of(of).metric,
                        std::stod(word), std::nullopt);
    }
    if (what == "statement") return take_statement(of, in);
    if (what == "node") return evidence.nodes.push_back(of);
    Observation o;
    o.metric = metric_of(what).metric;
    o.unit = metric_of(what).unit;
    o.of = subject_of(of);
    o.backend = "gpu";
    o.board = kH100;
    o.pci_device_id = "10de:2330";
    o.compute_capability = "9.0";
    if (o.of.scope == Scope::link) o.path_class = "nvswitch";
    in >> word;
    o.samples = what == "sms" ? std::vector{number_of(word)} : around(number_of(word));
    while (in >> word) set(o, word.substr(0, word.find('=')), word.substr(word.find('=') + 1));
    evidence.observations.push_back(o);
  }

 private:
  void take_reference(const Metric& metric, std::istream& in) {
    ReferenceFigure made;
    made.metric = metric.metric;
    made.unit = metric.unit;
    made.kind = "measured";
    made.source = "test";
    made.date = "2026-11-26";
    made.units = 4;
    made.between = made.look = 0.0005;
    made.clock_mhz = 1400;
    in >> made.value;
    for (std::string word; in >> word;) {
      const std::string key = word.substr(0, word.find('=')),
                        value = word.substr(word.find('=') + 1);
      if (key == "units") made.units = std::stoul(value);
      if (key == "between") made.between = std::stod(value);
      if (key == "limit_w") made.power_limit_w = std::stod(value);
      if (key == "cublas") made.versions = {{"cublas", value}};
      if (key == "line") made.line = ClockLine{number_of(value), 5};
      if (key == "path") made.path_class = value;
    }
    figures.push_back(made);
  }

  void take_statement(const std::string& node, std::istream& in) {
    std::string outcome, accepted;
    in >> outcome >> accepted;
    Statement made;
    made.verdict = {
        Scope::gpu,   "GPU-" + node + "1", outcome == "FAIL" ? Outcome::fail : Outcome::warn,
        "wrong data", Class::hardware,     ""};
    made.nodes = {node};
    made.accepted = !accepted.empty();
    evidence.statements.push_back(made);
  }
};

/// "rates=products,memory strict" and the lines below.
Given given_by(const std::string& text) {
  Given given;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word == "strict") given.request.strict = true;
    if (!word.starts_with("rates=")) continue;
    std::istringstream classes(word.substr(6));
    for (std::string one; std::getline(classes, one, ',');) given.request.rates.push_back(one);
  }
  while (std::getline(lines, line)) given.take(line);
  return given;
}

std::string answer_of(const Judgement& found) {
  std::string text;
  for (const Verdict& finding : found.findings)
    text += fmt::format("{} ({}{}{})\n", line_of(finding),
                        finding.class_ ? name_of(*finding.class_) : "no class",
                        finding.witness.empty() ? "" : ", by ", finding.witness);
  for (const Verdict& node : found.nodes) text += line_of(node) + "\n";
  for (const Unjudged& none : found.unjudged)
    text += fmt::format("unjudged: {}: {}; {}\n", none.rates, none.why, none.action);
  for (const std::size_t one : suspects(found)) text += fmt::format("suspect: {}\n", one);
  return text + line_of(found.job);
}

}  // namespace

TEST_CASE("what the judge makes of observations", "[judge]") {
  test::check_transcript("tests/common/judge.txt", [](const std::string& given) {
    return answer_of(given_by(given).judged());
  });
}

TEST_CASE("what another program measured of the same GPU without a reference finds no less",
          "[judge]") {
  const auto slow_down = [](const std::string& lines) {
    const Judgement found = given_by("judge\n reference cycles 4001\n" + lines).judged();
    REQUIRE(found.would_have_found.size() == 1);
    return found.would_have_found.front().slow_down;
  };
  const double sharp = slow_down(" cycles gpu0 4001");
  CHECK(sharp < 0.02);
  CHECK(slow_down(" cycles gpu0 4001\n cycles gpu0 4001 manner=sustained") == sharp);
  const auto found =
      given_by("judge\n reference cycles 4001\n cycles gpu0 4001\n cycles gpu1 4001 manner=x")
          .judged()
          .would_have_found;
  REQUIRE(found.size() == 2);
  CHECK(found[0].slow_down == sharp);
  CHECK(found[1].slow_down > 0.5);
  CHECK(found[1].rates == "products without a reference");
}

TEST_CASE("a fleet that is wider than the reference fails nobody in its midst", "[judge]") {
  Given fleet = given_by("judge\n reference cycles 4001");
  for (int gpu = 0; gpu < 32; ++gpu)
    fleet.take(fmt::format("cycles gpu{} 4001/{}", gpu, 1 + 4e-4 * gpu));
  const auto failed = [&] {
    Texts names;
    for (const Verdict& finding : fleet.judged().findings)
      if (finding.outcome == Outcome::fail) names.push_back(finding.name);
    return names;
  };
  CHECK(failed().empty());
  CHECK(fleet.judged().job.outcome == Outcome::inconclusive);
  fleet.take("cycles gpu32 4001/1.2");
  CHECK(failed() == Texts{"GPU-n132"});
}

TEST_CASE("the order of observations does not count", "[judge]") {
  Given given;
  for (int gpu = 0; gpu < 6; ++gpu)
    for (int look = 1; look <= 2; ++look)
      given.take(fmt::format("cycles gpu{} {} look={}", gpu, gpu == 3 ? 3900 : 4001 + gpu, look));
  const auto text = [&] {
    const Judgement found = given.judged();
    std::string lines;
    for (const Verdict& verdict : found.findings) lines += line_of(verdict) + "\n";
    return lines + line_of(found.job);
  };
  const std::string first = text();
  std::mt19937 random(13);
  for (int turn = 0; turn < 5; ++turn) {
    std::shuffle(given.evidence.observations.begin(), given.evidence.observations.end(), random);
    CHECK(text() == first);
  }
  const auto once = given.evidence.observations;  // a file that is given twice
  given.evidence.observations.insert(given.evidence.observations.end(), once.begin(), once.end());
  CHECK(text() == first);
}

TEST_CASE("records that are cut, shuffled or ended badly", "[judge]") {
  const std::string path = "judge_test.jsonl";
  const std::string run = R"({"kind":"run","run_id":"r","hosts":["n1"]})", cut = run.substr(0, 30);
  const std::string end = R"({"kind":"end","run_id":"r","exit_code":0})";
  const std::string bad = R"({"kind":"end","run_id":"r","exit_code":5})";
  const auto stated = [&](const std::vector<std::string>& lines) {
    std::ofstream out(path);
    for (const std::string& line : lines) out << line << "\n";
    out.close();
    return read({path}).evidence.statements.size();
  };
  CHECK(stated({run, end}) == 0);
  CHECK(stated({end, run}) == 0);
  CHECK(stated({run}) == 1);
  CHECK(stated({run, bad}) == 1);
  CHECK(stated({run, cut, end}) == 1);
  CHECK(stated({run, end, std::string(9, '\0')}) == 1);  // after a power failure
  CHECK(stated({end}) == 1);
  const std::string conclusion =
      R"({"kind":"verdict","run_id":"j","scope":"job","name":"judge","verdict":"FAIL"})";
  CHECK(stated({run, end, conclusion}) == 0);  // of bin/judge --record
  CHECK(stated({run, R"({"kind":"end","run_id":"r","exit_code":null})"}) == 1);
  CHECK_THROWS_AS(stated({"no record"}), UsageError);
  // Of two GPUs of a run one has no figure of what the other has; and what follows a lost
  // beginning.
  const std::string of_two =
      R"({"kind":"run","run_id":"r","hosts":["n1","n2"],"gpu_uuids":["GPU-0","GPU-1"]})";
  const auto metric = [](const std::string& name, int gpu) {
    return fmt::format(R"({{"kind":"metric","run_id":"r","unit":"s","scope":"gpu","metric":"{}",)"
                       R"("name":"GPU-{}","hosts":["n{}"],"uuids":["GPU-{}"],"samples":[1],)"
                       R"("check":"verified","outcome":"measured"}})",
                       name, gpu, gpu + 1, gpu);
  };
  CHECK(stated({of_two, metric("memory/copy", 0), metric("memory/copy", 1), end}) == 0);
  CHECK(stated({of_two, metric("memory/copy", 0), end}) == 1);
  CHECK(stated({of_two, metric("train/compute_ms", 0), end}) == 0);  // the other serves
  CHECK(stated({metric("memory/copy", 0)}) == 1);
  for (const char* key : {R"("hosts":[])", R"("metric":5)"})
    CHECK_THROWS_AS(
        stated({fmt::format(R"({{"kind":"metric","unit":"s","scope":"gpu","name":"x",{}}})", key)}),
        UsageError);
  std::remove(path.c_str());
}

TEST_CASE("records in folders of a folder count", "[judge]") {
  const test::TempFolder folder;
  folder.touch("acceptance-1/log");
  CHECK_THROWS_AS(read({folder.path}), UsageError);
  folder.touch("acceptance-2/acceptance_20261129_070127.log");  // it was killed
  folder.write("acceptance-2/soak/n1.jsonl", R"({"kind":"run","run_id":"r","hosts":["n1"]})"
                                             "\n"
                                             R"({"kind":"end","run_id":"r","exit_code":0})");
  CHECK(read({folder.path}).evidence.statements.size() == 1);
  folder.write("acceptance_night/j.jsonl",  // no log of an acceptance
               R"({"kind":"run","run_id":"s","hosts":["n1"]})"
               "\n"
               R"({"kind":"end","run_id":"s","exit_code":0})");
  CHECK(read({folder.path}).evidence.statements.size() == 1);
  folder.write("acceptance-1/runs.jsonl",
               R"({"kind":"verdict","nodes":["n1"],"scope":"node","verdict":"FAIL","cause":"x"})");
  CHECK(read({folder.path}).evidence.statements.size() == 2);
  folder.write("acceptance-1/runs.jsonl", "{\"kind\":\"node\",\"name\":\"n1\"}\n{\"kind");
  CHECK(read({folder.path + "/acceptance-1"}).evidence.statements.back().verdict.cause ==
        "runs.jsonl: line 2 is cut");
  const auto passed = [&](const char* code) {
    folder.write("acceptance-1/runs.jsonl",
                 std::string(R"({"kind":"stage","name":"soak","nodes":["n1"],)") +
                     R"("record":"../acceptance_night/j.jsonl","exit_code":)" + code + "}");
    const auto found = read({folder.path + "/acceptance-1"}).evidence.statements;
    return found.size() == 1 && found[0].verdict.outcome == Outcome::pass &&
           found[0].nodes == Texts{"n1"};
  };
  CHECK(passed("0"));
  CHECK(passed("1"));  // what failed it stands in runs.jsonl, or its rates are judged anew
  CHECK_FALSE(passed("3"));
  folder.write("acceptance-1/runs.jsonl", "{\"kind\":\"node\",\"name\":\"n1\"}\n{\"kind");
  folder.write("acceptance-2/runs.jsonl", "");  // a full disk
  CHECK(read({folder.path}).evidence.statements.size() == 2);
}
