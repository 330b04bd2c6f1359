#include "common/judge/judge.hpp"
#include "common/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include "common/judge/evidence.hpp"
#include "tests/catch.hpp"

using namespace shakedown;
using namespace shakedown::judge;

namespace {

constexpr const char* kCycles = "product/fp16/flop_per_cycle_sm";
constexpr const char* kH100 = "NVIDIA H100 80GB HBM3";
constexpr double kUsual = 4001;

/// As many samples as any limit needs, a thousandth apart.
std::vector<double> around(double value) {
  std::vector<double> samples;
  for (int i = 0; i < 40; ++i) samples.push_back(value * (1 + 1e-4 * (i % 3 - 1)));
  return samples;
}

Observation of_gpu(const std::string& metric, const std::string& unit, int gpu, double value,
                   const std::string& host = "n1", int look = 1) {
  Observation o;
  o.metric = metric;
  o.unit = unit;
  o.of = {Scope::gpu, "GPU-" + host + std::to_string(gpu),   {gpu},
          {host},     {"GPU-" + host + std::to_string(gpu)}, {"serial"}};
  o.backend = "gpu";
  o.board = kH100;
  o.pci_device_id = "10de:2330";
  o.compute_capability = "9.0";
  o.look = look;
  o.samples = unit == "SMs" ? std::vector{value} : around(value);
  return o;
}

Observation cycles(int gpu, double value = kUsual, int look = 1) {
  return of_gpu(kCycles, "FLOP/cycle/SM", gpu, value, "n1", look);
}

Observation of_node(const std::string& metric, const std::string& unit, const std::string& host,
                    double value) {
  Observation o = of_gpu(metric, unit, 0, value, host);
  o.of.scope = Scope::node;
  o.of.name = host;
  o.of.uuids.clear();
  return o;
}

Observation step(const std::string& host, double ms) {
  return of_node("train/step_ms", "ms", host, ms);
}

Observation of_pair(int from, int to, double gbs, const std::string& path = "nvswitch") {
  Observation o = of_gpu("link/copy_engine/one_way", "GB/s", from, gbs);
  o.of = {Scope::link,
          std::to_string(from) + "->" + std::to_string(to),
          {from, to},
          {"n1", "n1"},
          {"GPU-" + std::to_string(from), "GPU-" + std::to_string(to)},
          {"", ""}};
  o.path_class = path;
  return o;
}

/// Of observations alone; of a board that nobody knows, there are no first principles.
std::vector<Observation> unknown_board(std::vector<Observation> all) {
  for (Observation& o : all) {
    o.board = "ACME 1";
    o.pci_device_id = "abcd:0001";
    o.compute_capability = "";
    o.peak = kUnknown;
  }
  return all;
}

ReferenceFigure figure(const std::string& metric, const std::string& unit, double value,
                       std::size_t units = 4) {
  ReferenceFigure made;
  made.metric = metric;
  made.unit = unit;
  made.value = value;
  made.kind = "measured";
  made.source = "test";
  made.date = "2026-11-26";
  made.units = units;
  made.between = 0.0005;
  made.look = 0.0005;
  made.clock_mhz = 1400;
  return made;
}

References of(const std::vector<ReferenceFigure>& figures) {
  Reference reference;
  reference.name = "test";
  reference.pci_device_ids = {"10de:2330"};
  reference.models = {kH100};
  reference.figures = figures;
  return References({reference});
}
const References kNone{std::vector<Reference>{}};
const References kUsualCycles = of({figure(kCycles, "FLOP/cycle/SM", kUsual)});

Judgement verdicts_of(const std::vector<Observation>& observations,
                      const References& references = kNone, const Request& request = {},
                      const Limits& limits = Limits::embedded()) {
  return judge::judge({observations, {}, {}}, references, limits, Boards::embedded(), request);
}

Outcome job_of(const std::vector<Observation>& observations, const References& references = kNone,
               const Request& request = {}, const Limits& limits = Limits::embedded()) {
  return verdicts_of(observations, references, request, limits).job.outcome;
}

std::vector<std::string> failed(const Judgement& judgement) {
  std::vector<std::string> names;
  for (const Verdict& verdict : judgement.findings)
    if (verdict.outcome == Outcome::fail) names.push_back(verdict.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("of two GPUs the one that needs more cycles fails, with class and action", "[judge]") {
  const Judgement found = verdicts_of({cycles(0), cycles(1, kUsual / 1.03)});
  REQUIRE(failed(found) == Texts{"GPU-n11"});
  CHECK(found.findings.front().class_ == Class::hardware);
  CHECK_FALSE(found.findings.front().action.empty());
  CHECK(found.job.outcome == Outcome::fail);
  CHECK(found.findings.front().witness == std::string("peers"));

  CHECK(job_of({cycles(0), cycles(1, kUsual / 1.004)}) == Outcome::pass);
  // two of four slow: the faster half is right
  CHECK(failed(verdicts_of({cycles(0), cycles(1), cycles(2, 3850), cycles(3, 3850)})).size() == 2);
}

TEST_CASE("a PASS says what it would have found, and at that it is", "[judge]") {
  const Judgement found = verdicts_of({cycles(0), cycles(1)});
  REQUIRE(found.would_have_found.size() == 1);
  const double slow = found.would_have_found.front().slow_down;
  CHECK(slow >= 0.01);
  CHECK(slow < 0.02);
  CHECK(found.job.cause.find("would have found at 99 %: products 1.") == 0);
  CHECK(job_of({cycles(0), cycles(1, kUsual / (1 + slow + 1e-3))}) == Outcome::fail);
}

TEST_CASE("a measured reference fails what is slower in all looks, and warns of one", "[judge]") {
  CHECK(job_of({cycles(0, kUsual / 1.02)}, kUsualCycles) == Outcome::fail);
  CHECK(job_of({cycles(0, kUsual / 1.02), cycles(0, kUsual / 1.02, 2)}, kUsualCycles) ==
        Outcome::fail);
  const Judgement once =
      verdicts_of({cycles(0, kUsual / 1.02), cycles(0, kUsual, 2)}, kUsualCycles);
  CHECK(once.job.outcome == Outcome::pass);
  REQUIRE(once.findings.size() == 1);
  CHECK(once.findings.front().outcome == Outcome::warn);
  CHECK(once.findings.front().cause.find("slow in 1 of 2 looks") != std::string::npos);

  SECTION("of a best, one slow look is other work") {
    const References copies = of({figure("memory/copy", "GB/s", 2950)});
    const auto copy = [](double gbs, int look) {
      return of_gpu("memory/copy", "GB/s", 0, gbs, "n1", look);
    };
    CHECK(verdicts_of({copy(2500, 1), copy(2950, 2)}, copies).findings.empty());
    CHECK(job_of({copy(2500, 1), copy(2500, 2), copy(2500, 3)}, copies) == Outcome::fail);
  }
  SECTION("suspects are looked at again as often as the limit says") {
    const std::vector<Observation> slow{cycles(0, kUsual / 1.02), cycles(1)};
    CHECK(suspects(verdicts_of(slow, kUsualCycles)) == std::vector<std::size_t>{0});
    std::vector<Observation> twice = slow;
    twice.push_back(cycles(0, kUsual / 1.02, 2));
    CHECK(suspects(verdicts_of(twice, kUsualCycles)).empty());
    twice.back().disturbed_by =
        "other processes: pid 99";  // a look that judges nothing is one, too
    CHECK(suspects(verdicts_of(twice, kUsualCycles)).empty());
  }
}

TEST_CASE("a reference of few units, or of other versions, only warns", "[judge]") {
  CHECK(job_of({cycles(0, 3900)}, of({figure(kCycles, "FLOP/cycle/SM", kUsual, 2)})) ==
        Outcome::pass);
  ReferenceFigure other = figure(kCycles, "FLOP/cycle/SM", kUsual);
  other.versions = {{"cublas", "12.8"}};
  Observation here = cycles(0, 3900);
  here.versions = {{"cublas", "13.1"}};
  const Judgement found = verdicts_of({here}, of({other}));
  CHECK(found.job.outcome == Outcome::pass);  // by first principles
  REQUIRE_FALSE(found.findings.empty());
  CHECK(found.findings.front().outcome == Outcome::warn);
  CHECK(found.findings.front().cause.find("cublas 12.8, here 13.1") != std::string::npos);
}

TEST_CASE("a Grace board's host link is C2C, not what NVML says of PCIe", "[judge]") {
  Observation o = of_gpu("host_link/to_device/alone", "GB/s", 0, 300);
  o.board = "NVIDIA GB200";
  o.pci_device_id = "10de:2941";
  o.peak = 1;  // of one lane
  CHECK(failed(verdicts_of({o})).size() == 1);
  o.samples = around(360);
  CHECK(job_of({o}) == Outcome::pass);
}

TEST_CASE("where all devices are slow alike it is a setting", "[judge]") {
  const Judgement found = verdicts_of({cycles(0, 3500), cycles(1, 3500)}, kUsualCycles);
  REQUIRE(failed(found).size() == 2);
  for (const Verdict& verdict : found.findings) CHECK(verdict.class_ == Class::config);
}

TEST_CASE("a fleet that is wider than the reference fails nobody in its midst", "[judge]") {
  std::vector<Observation> fleet;
  for (int gpu = 0; gpu < 32; ++gpu) fleet.push_back(cycles(gpu, kUsual / (1 + 4e-4 * gpu)));
  const Judgement wide = verdicts_of(fleet, kUsualCycles);
  CHECK(failed(wide).empty());
  CHECK(wide.job.outcome == Outcome::inconclusive);
  fleet.push_back(cycles(32, kUsual / 1.2));
  CHECK(failed(verdicts_of(fleet, kUsualCycles)) == Texts{"GPU-n132"});
}

TEST_CASE("first principles fail a lone GPU at a quarter of its speed", "[judge]") {
  CHECK(job_of({cycles(0)}) == Outcome::pass);
  const Judgement found = verdicts_of({cycles(0, kUsual / 4)});
  CHECK(failed(found).size() == 1);
  CHECK(found.findings.front().witness == std::string("first_principles"));
  Observation unknown = cycles(0, kUsual / 4);
  unknown.board = "NVIDIA H999";
  unknown.pci_device_id = "10de:ffff";
  Observation sound = unknown;
  sound.samples = around(kUsual);
  CHECK(job_of({sound}) == Outcome::pass);
  const Judgement by_architecture = verdicts_of({unknown});
  CHECK(failed(by_architecture).size() == 1);
  CHECK(by_architecture.findings.front().cause.find("judged as") != std::string::npos);
}

TEST_CASE("what was not measured well is not judged, and no zero passes", "[judge]") {
  Observation nan = cycles(0);
  nan.samples[3] = kUnknown;
  CHECK(job_of({nan, cycles(1)}) == Outcome::inconclusive);
  Observation few = cycles(0);
  few.samples.resize(2);
  CHECK(job_of({few}) == Outcome::inconclusive);
  Observation zero = cycles(0);
  std::fill(zero.samples.begin(), zero.samples.end(), 0.0);
  CHECK(failed(verdicts_of({zero, cycles(1)})) == Texts{"GPU-n10"});
  Observation late = cycles(0);
  late.taken = Taken::timed_out;
  CHECK(job_of({late, cycles(1)}) == Outcome::inconclusive);
  Observation again = nan;  // a look that could not be judged clears nobody
  again.look = 2;
  const auto slow = cycles(0, kUsual / 2);
  const Judgement twice = verdicts_of({slow, again, cycles(1)});
  CHECK(failed(twice) == Texts{"GPU-n10"});
  CHECK(twice.findings.front().cause.find("nan") == std::string::npos);
  Observation wrong = cycles(0);
  wrong.check = Check::wrong;
  CHECK(job_of({wrong, cycles(0, kUsual, 2), cycles(1)}) == Outcome::inconclusive);
  Limits bars = Limits::embedded();
  bars.bar(kCycles, 3000, std::nullopt);
  CHECK(failed(verdicts_of({slow, again}, kNone, {}, bars)) == Texts{"GPU-n10"});
  const Judgement nothing = judge::judge({{}, {}, {"n1"}}, kNone, Limits::embedded(),
                                         Boards::embedded(), {"test", {"products", "memory"}});
  CHECK(nothing.job.outcome == Outcome::inconclusive);
  CHECK(nothing.unjudged.size() == 2);
  CHECK(job_of({}) == Outcome::inconclusive);
}

TEST_CASE("a GPU in use by others is INCONCLUSIVE, and nobody's peer", "[judge]") {
  Observation shared = cycles(0, kUsual / 2);
  shared.disturbed_by = "in use by other processes: pid 99";
  const Judgement found = verdicts_of({shared, cycles(1)});
  CHECK(found.job.outcome == Outcome::inconclusive);
  REQUIRE(found.findings.size() == 1);
  CHECK(found.findings.front().class_ == Class::environment);
  CHECK(found.findings.front().cause.find("pid 99") != std::string::npos);
}

TEST_CASE("nodes of which nothing says which is right are INCONCLUSIVE, both", "[judge]") {
  const Judgement two = verdicts_of({step("n1", 20), step("n2", 64)});
  REQUIRE(two.nodes.size() == 2);
  for (const Verdict& node : two.nodes) CHECK(node.outcome == Outcome::inconclusive);
  CHECK(std::any_of(two.findings.begin(), two.findings.end(), [](const Verdict& verdict) {
    return verdict.cause.find("3.20 times slower") != std::string::npos;
  }));
  CHECK(job_of({step("n1", 20), step("n2", 20.2)}) == Outcome::pass);

  const Judgement three = verdicts_of({step("n1", 20), step("n2", 20), step("n3", 64)});
  CHECK(failed(three) == Texts{"n3"});
  const Judgement split =
      verdicts_of({step("n1", 20), step("n2", 20), step("n3", 64), step("n4", 64)});
  CHECK(failed(split).empty());
  CHECK(split.job.outcome == Outcome::inconclusive);
}

TEST_CASE("a GPU with slow pairs is the suspect, else the link", "[judge]") {
  std::vector<Observation> pairs;
  const auto all = [&](const auto& rate) {
    pairs.clear();
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b)
        if (a != b) pairs.push_back(of_pair(a, b, rate(a, b)));
    return verdicts_of(pairs);
  };
  CHECK(all([](int, int) { return 397.0; }).job.outcome == Outcome::pass);
  CHECK(failed(all([](int a, int b) { return a == 2 || b == 2 ? 199.0 : 397.0; })) ==
        Texts{"GPU-2"});
  CHECK(failed(all([](int a, int b) { return a == 1 && b == 3 ? 350.0 : 397.0; })) ==
        Texts{"1->3"});
}

TEST_CASE("where links only warn, the GPU is named in their place, too", "[judge]") {
  std::vector<Observation> pairs;
  for (int a = 0; a < 5; ++a)
    for (int b = 0; b < 5; ++b) {
      if (a == b) continue;
      pairs.push_back(of_pair(a, b, a == 2 || b == 2 ? 20 : 45, "network_rail"));
      pairs.back().metric = "link/nccl/one_way";
      pairs.back().of.hosts = {"n" + std::to_string(a), "n" + std::to_string(b)};
    }
  const Judgement judgement = verdicts_of(unknown_board(pairs));
  REQUIRE(judgement.findings.size() == 1);
  CHECK(judgement.findings[0].outcome == Outcome::warn);
  CHECK(judgement.findings[0].name == "GPU-2");
  CHECK_THAT(judgement.findings[0].cause, ContainsSubstring("8 of its 8 pairs are slow"));
}

TEST_CASE("links are compared within their class", "[judge]") {
  std::vector<Observation> pairs;
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b)
      if (a != b)
        pairs.push_back(
            of_pair(a, b, a == 0 || b == 0 ? 50 : 380, a == 0 || b == 0 ? "socket" : "nvlink"));
  CHECK(failed(verdicts_of(pairs)).empty());

  // Two racks: the clique is a condition, so a half link of one is not taken for the other's.
  std::vector<Observation> racks;
  for (const std::string rack : {"a", "b"})
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b) {
        if (a == b) continue;
        Observation pair = of_pair(a, b, rack == "b" && (a == 2 || b == 2) ? 380 : 770);
        for (std::string& uuid : pair.of.uuids) uuid += rack;
        pair.conditions["clique"] = rack;
        racks.push_back(pair);
      }
  CHECK(failed(verdicts_of(unknown_board(racks))) == Texts{"GPU-2b"});
}

TEST_CASE("who is slow beyond what unsteady samples explain is not passed", "[judge]") {
  const auto unsteady = [](const std::string& host, double ms) {
    Observation o = step(host, ms);
    for (std::size_t i = 0; i < o.samples.size(); ++i) o.samples[i] *= 1 + 0.15 * (i % 3);
    return o;
  };
  const References known = of({figure("train/step_ms", "ms", 23)});
  CHECK(job_of({unsteady("n1", 80)}, known) == Outcome::inconclusive);
  for (const Verdict& node : verdicts_of({unsteady("n1", 20), unsteady("n2", 80)}).nodes)
    CHECK(node.outcome == Outcome::inconclusive);
}

TEST_CASE("a GPU without a class of rates that is needed is not passed over", "[judge]") {
  const auto copy = [](int gpu) { return of_gpu("memory/copy", "GB/s", gpu, 3000); };
  const Request both{"test", {"products", "memory"}, false};
  CHECK(job_of({cycles(0), cycles(1), copy(0), copy(1)}, kNone, both) == Outcome::pass);
  CHECK(job_of({cycles(0), cycles(1), copy(0)}, kNone, both) == Outcome::inconclusive);
}

TEST_CASE("whose only peer fails has no witness, be it slower or faster", "[judge]") {
  Observation bad = of_gpu("memory/copy", "GB/s", 0, 500, "n1");
  const auto found_with = [&](double first_ms, double second_ms) {
    const Judgement found = verdicts_of({bad, step("n1", first_ms), step("n2", second_ms)});
    REQUIRE(found.nodes.size() == 2);
    CHECK(found.nodes[0].outcome == Outcome::fail);
    CHECK(found.nodes[1].outcome == Outcome::inconclusive);
  };
  found_with(20, 80);          // a GPU of it fails
  bad.of = step("n1", 64).of;  // the node itself fails, by another metric
  found_with(64, 20);
}

TEST_CASE("a node passes when each class of its rates has a witness", "[judge]") {
  const Request both{"test", {"products", "collectives"}, false};
  Observation reduce = of_node("collective/all_reduce/busbw", "GB/s", "n1", 300);
  CHECK(job_of({cycles(0), cycles(1), reduce}, kNone, both) == Outcome::pass);
  reduce.samples = around(100);  // of 450 that its NVLinks carry
  CHECK(failed(verdicts_of({cycles(0), cycles(1), reduce}, kNone, both)).size() == 1);
  reduce = of_node("collective/all_reduce/busbw", "GB/s", "n1", 300);
  reduce.of.scope = Scope::group;  // where the wires between nodes are not known
  const Judgement without = verdicts_of({cycles(0), cycles(1), reduce}, kNone, both);
  CHECK(without.job.outcome == Outcome::inconclusive);
  REQUIRE(without.unjudged.size() == 1);
  CHECK(without.unjudged.front().rates == "collectives");
  CHECK(without.unjudged.front().action.find("--record-reference") != std::string::npos);
  const References known = of({figure("collective/all_reduce/busbw", "GB/s", 300)});
  CHECK(job_of({cycles(0), cycles(1), reduce}, known, both) == Outcome::pass);
  const Judgement absent = verdicts_of({cycles(0), cycles(1)}, kNone, both);
  REQUIRE(absent.unjudged.size() == 1);
  CHECK(absent.unjudged.front().why == "nothing was measured");
}

TEST_CASE("what GPUs do together needs no witness where each one's own has one", "[judge]") {
  const auto own = [](int gpu) { return of_gpu("train/compute_ms", "ms", gpu, 20); };
  CHECK(job_of({own(0), own(1), step("n1", 27)}) == Outcome::pass);  // by peers
  CHECK(job_of({own(0), step("n1", 27)}) == Outcome::inconclusive);
}

TEST_CASE("the CPU's rates never fail; a far slower node in two classes does not pass", "[judge]") {
  const auto of_cpu = [](const std::string& metric, const std::string& unit,
                         const std::string& host, double value) {
    Observation o = of_node(metric, unit, host, value);
    o.backend = "cpu";
    o.board = "processor";
    o.pci_device_id.clear();
    return o;
  };
  const std::vector<Observation> one{of_cpu("train/step_ms", "ms", "n1", 20),
                                     of_cpu("train/step_ms", "ms", "n2", 90)};
  const Judgement forgiven = verdicts_of(one);
  CHECK(forgiven.job.outcome == Outcome::pass);
  CHECK(forgiven.job.cause == "correctness only");
  std::vector<Observation> two = one;
  two.push_back(of_cpu("collective/all_reduce/busbw", "GB/s", "n1", 8));
  two.push_back(of_cpu("collective/all_reduce/busbw", "GB/s", "n2", 1));
  const Judgement apart = verdicts_of(two);
  CHECK(apart.job.outcome == Outcome::inconclusive);
  CHECK(failed(apart).empty());
}

TEST_CASE("the user's bars decide", "[judge]") {
  Limits limits = Limits::embedded();
  limits.bar("collective/*/busbw", 100.0, std::nullopt);
  const auto reduce = [](double gbs) {
    return of_node("collective/all_reduce/busbw", "GB/s", "n1", gbs);
  };
  CHECK(job_of({reduce(120)}, of({figure("collective/all_reduce/busbw", "GB/s", 300)}), {},
               limits) == Outcome::pass);
  const Judgement below = verdicts_of({reduce(90)}, kNone, {}, limits);
  CHECK(below.job.outcome == Outcome::fail);
  CHECK(below.findings.front().cause.find("at least 100") != std::string::npos);
}

TEST_CASE("a low clock is explained before it is blamed", "[judge]") {
  constexpr const char* kClock = "product/fp16/clock_mhz";
  ReferenceFigure usual = figure(kClock, "MHz", 1400);
  usual.between = 0.015;
  usual.power_limit_w = 700;
  const auto at = [&](double mhz, std::optional<std::uint64_t> reasons, double limit_w = 700) {
    Observation o = of_gpu(kClock, "MHz", 0, mhz);
    o.seen.reasons = reasons;
    o.seen.power_limit_w = limit_w;
    return verdicts_of({o}, of({usual}));
  };
  const auto class_of = [](const Judgement& found) { return found.findings.front().class_; };
  CHECK(at(1300, 0x4).findings.front().outcome == Outcome::warn);  // power alone
  CHECK(at(1150, 0x4).findings.front().outcome == Outcome::fail);
  CHECK(class_of(at(1150, 0x40)) == Class::environment);
  CHECK(class_of(at(1150, 0)) == Class::config);
  CHECK(class_of(at(1150, 0x4, 500)) == Class::config);
  CHECK(at(1390, 0x4).findings.empty());
}

TEST_CASE("a hot GPU's step is explained by its clock, a broken one's is not", "[judge]") {
  ReferenceFigure usual = figure("train/compute_ms", "ms", 20);
  usual.line = ClockLine{21000, 5};
  const auto step = [&](double ms, double mhz) {
    Observation o = of_gpu("train/compute_ms", "ms", 0, ms);
    o.seen.clock_mhz = mhz;
    return verdicts_of({o}, of({usual}));
  };
  CHECK(step(22.5, 1200).findings.empty());
  CHECK(failed(step(24, 1200)).size() == 1);
  CHECK(failed(step(22.5, 1400)).size() == 1);
}

TEST_CASE("statements count, and a named node is judged by its own", "[judge]") {
  Statement wrong;
  wrong.verdict = {Scope::gpu, "GPU-n21", Outcome::fail, "wrong data", Class::hardware, ""};
  wrong.nodes = {"n2"};
  Statement remark = wrong;
  remark.verdict.outcome = Outcome::warn;
  remark.nodes = {"n1"};
  const auto by = [&](bool strict, bool accepted) {
    remark.accepted = accepted;
    return judge::judge({{cycles(0), cycles(1)}, {wrong, remark}, {"n1", "n2"}}, kNone,
                        Limits::embedded(), Boards::embedded(), {"test", {}, strict});
  };
  const Judgement found = by(false, false);
  REQUIRE(found.nodes.size() == 2);
  CHECK(found.nodes[0].outcome == Outcome::pass);
  CHECK(found.nodes[1].outcome == Outcome::fail);
  CHECK(found.job.outcome == Outcome::fail);
  CHECK(by(true, false).nodes[0].outcome == Outcome::inconclusive);
  CHECK(by(true, true).nodes[0].outcome == Outcome::pass);
}

TEST_CASE("a GPU that reports fewer SMs than its board has fails", "[judge]") {
  const auto sms = [](double count) {
    return verdicts_of({of_gpu("setting/sms", "SMs", 0, count)});
  };
  CHECK(failed(sms(131)).size() == 1);
  CHECK(sms(132).job.outcome == Outcome::pass);
}

TEST_CASE("racks do not part references", "[judge]") {
  Observation pair = of_pair(0, 1, 397);
  pair.conditions["clique"] = "ab.7";
  ReferenceFigure known = figure("link/copy_engine/one_way", "GB/s", 397);
  known.path_class = "nvswitch";
  CHECK(of({known}).find(pair) != nullptr);
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
  CHECK_THROWS_AS(stated({"no record"}), UsageError);
  for (const char* key : {R"("hosts":[])", R"("metric":5)"})
    CHECK_THROWS_AS(
        stated({fmt::format(R"({{"kind":"metric","unit":"s","scope":"gpu","name":"x",{}}})", key)}),
        UsageError);
  std::remove(path.c_str());
}

TEST_CASE("an earlier run that was fast does not clear a later one", "[judge]") {
  Observation before = cycles(0), after = cycles(0, kUsual / 2);
  before.run = "2026-11-26";
  after.run = "2026-11-27";
  CHECK(failed(verdicts_of({after, before}, kUsualCycles)).size() == 1);
  Limits bars = Limits::embedded();
  bars.bar(kCycles, 3000, std::nullopt);
  CHECK(failed(verdicts_of({after, before}, kNone, {}, bars)).size() == 1);
  std::swap(before.run, after.run);
  CHECK(failed(verdicts_of({after, before}, kUsualCycles)).empty());
  before.samples.clear();
  CHECK(job_of({after, before}, kUsualCycles) == Outcome::inconclusive);
}

TEST_CASE("the order of observations does not count", "[judge]") {
  std::vector<Observation> all;
  for (int gpu = 0; gpu < 6; ++gpu)
    for (int look = 1; look <= 2; ++look)
      all.push_back(cycles(gpu, gpu == 3 ? 3900 : kUsual + gpu, look));
  const auto text = [&] {
    const Judgement found = verdicts_of(all);
    std::string lines;
    for (const Verdict& verdict : found.findings) lines += line_of(verdict) + "\n";
    return lines + line_of(found.job);
  };
  const std::string first = text();
  std::mt19937 random(13);
  for (int turn = 0; turn < 5; ++turn) {
    std::shuffle(all.begin(), all.end(), random);
    CHECK(text() == first);
  }
}
