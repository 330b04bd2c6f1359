// Verdicts of a soak from made-up windows.
#include "launch/node/soak/findings.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/usage_error.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/jury.hpp"
#include "launch/node/soak/product_placing.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/verdicts.hpp"

namespace shakedown::node {
namespace {

using test::brief;
using test::briefs;

const std::vector<RankIdentity> kRanks{
    {"n1", "GPU-a", "1", "H200"}, {"n1", "GPU-b", "2", "H200"}, {"n1", "GPU-c", "3", "H200"}};

RankWindow healthy() {
  RankWindow rank;
  rank.seconds = 10;
  rank.counts[0] = {5000, 0, 0, 0, 6e15, 10, 12};
  rank.hardware_slowdown_share = rank.thermal_share = 0;
  rank.power_cap_share = 1;
  rank.errors = {0, 0, 0, 0};
  return rank;
}

std::vector<Window> windows(int count) {
  std::vector<Window> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({i, "steady products bf16", ProductType::bf16, {}});
    for (std::size_t r = 0; r < kRanks.size(); ++r) all.back().ranks.push_back(healthy());
  }
  return all;
}

std::vector<Verdict> judge(const std::vector<Window>& all,
                           const std::vector<Incident>& incidents = {},
                           const std::vector<RankIdentity>& ranks = kRanks) {
  return judge_soak(all, incidents, ranks);
}

}  // namespace

TEST_CASE("healthy GPUs at the power cap have no finding", "[soak]") {
  const auto all = windows(10);
  CHECK(judge(all).empty());
  const Verdict job = judge_job(all, {}, {{LoadKind::products}});
  CHECK(job.outcome == Outcome::pass);
  CHECK(job.cause == "0 wrong in 0.0833 GPU-hours: rate below 36 per GPU-hour at 95 %");
  JobFacts facts{{LoadKind::products}};
  facts.power = "power at 95 %: one product in 50000";
  CHECK(judge_job(all, {}, facts).cause == job.cause + "; " + facts.power);
}

TEST_CASE("DCGM#242: throttling is judged by its share of the time", "[soak]") {
  auto all = windows(10);
  const auto judged = [&](double RankWindow::*share, double value) {
    for (Window& window : all) window.ranks[1].*share = value;
    return judge(all);
  };
  CHECK(judged(&RankWindow::thermal_share, 0.009).empty());
  const auto warned = judged(&RankWindow::thermal_share, 0.02);
  CHECK(briefs(warned) == Texts{"WARN GPU-b ENVIRONMENT"});
  CHECK(judge_job(all, warned, {{LoadKind::products}}).outcome == Outcome::pass);
  CHECK(briefs(judged(&RankWindow::thermal_share, 0.06)) == Texts{"FAIL GPU-b ENVIRONMENT"});
  judged(&RankWindow::thermal_share, 0);
  CHECK(judged(&RankWindow::hardware_slowdown_share, 0.001)[0].outcome == Outcome::fail);
}

TEST_CASE("health is known by each quantity in most windows and the last", "[soak]") {
  // The quantity is unknown in the windows from `first` until `end`.
  const auto lost = [](std::size_t first, std::size_t end, const auto& forget) {
    auto all = windows(10);
    for (std::size_t i = first; i < end; ++i) forget(all[i].ranks[1]);
    return judge(all);
  };
  const auto no_ecc = [](RankWindow& rank) { rank.errors = {}; };
  const auto no_reasons = [](RankWindow& rank) {
    rank.hardware_slowdown_share = rank.thermal_share = kUnknown;
  };
  const auto nothing = [&](RankWindow& rank) {
    no_ecc(rank);
    no_reasons(rank);
  };
  const auto inconclusive = [](const std::vector<Verdict>& verdicts, const char* words) {
    REQUIRE(briefs(verdicts) == Texts{"INCONCLUSIVE GPU-b"});
    CHECK_THAT(verdicts[0].cause, ContainsSubstring(words));
  };
  inconclusive(lost(0, 10, no_reasons),
               "could be read: hardware slowdown in 0 of 10; thermal slowdown in 0 of 10");
  inconclusive(lost(0, 10, no_ecc), "could be read: ECC errors in 0 of 10");
  inconclusive(lost(1, 10, nothing), "ECC errors in 1 of 10, not the last; hardware slowdown in 1");
  inconclusive(lost(9, 10, no_ecc), "ECC errors in 9 of 10, not the last");
  CHECK(lost(0, 5, nothing).empty());  // half of them is enough
  auto all = windows(10);
  for (Window& window : all) no_ecc(window.ranks[1]);
  auto ranks = kRanks;
  ranks[1].lacks_ecc = true;  // as NVML says: a remark
  const auto remark = judge(all, {}, ranks);
  REQUIRE(briefs(remark) == Texts{"WARN GPU-b HARDWARE"});
  CHECK_THAT(remark[0].cause, ContainsSubstring("no ECC"));
  inconclusive(lost(0, 6, no_ecc), "ECC errors in 4 of 10");
}

TEST_CASE("unanswered calls and counted errors are their GPU's", "[soak]") {
  auto all = windows(10);
  all[3].ranks[0].errors.ecc_uncorrected = 1;
  CHECK(judge(all)[0].outcome == Outcome::fail);
  all[3].ranks[0].errors.ecc_uncorrected = 0;
  all[3].ranks[0].errors.ecc_corrected = 7;
  CHECK(judge(all)[0].outcome == Outcome::warn);
  auto ranks = kRanks;
  ranks[1].stalled = "nvmlDeviceGetPowerUsage";
  const auto stalled = judge(windows(1), {}, ranks);
  REQUIRE(briefs(stalled) == Texts{"FAIL GPU-b HARDWARE"});
  CHECK(stalled[0].check == "driver-errors");
  CHECK(stalled[0].hosts == Texts{"n1"});
}

TEST_CASE("what was not checked never passes", "[soak]") {
  auto all = windows(3);
  CHECK(judge_job({}, {}, {}).outcome == Outcome::inconclusive);
  const Verdict none = judge_job(all, {}, {{LoadKind::products, LoadKind::memory}});
  CHECK(none.outcome == Outcome::inconclusive);
  CHECK_THAT(none.cause, ContainsSubstring("; no rank checked memory"));
  for (const std::size_t rank : {1, 2}) {
    for (Window& window : all) window.ranks[rank].counts[0].checked = 0;
    const Verdict part = judge_job(all, {}, {{LoadKind::products}});
    CHECK(part.outcome == Outcome::inconclusive);
    CHECK_THAT(part.cause, ContainsSubstring(rank == 1 ? "; rank 1 checked no products"
                                                       : "; ranks 1, 2 checked no products"));
  }
  all = windows(3);
  all[1].ranks[0].counts[0].wrong = 1;  // that nothing explains
  CHECK(judge_job(all, {}, {{LoadKind::products}}).outcome == Outcome::fail);
}

TEST_CASE("memory that not every pattern has covered never passes", "[soak][closed]") {
  const auto job = [](const std::vector<MemoryCoverage>& memory, const std::string& signal = "") {
    JobFacts facts{{LoadKind::products}, memory};
    facts.stopped_by = signal;
    facts.minutes = 2;
    facts.minutes_requested = 5;
    return judge_job(windows(3), {}, facts);
  };
  CHECK(job({{0.96, 1, 2, 6}, {0.96, 3, 0, 6}}).outcome == Outcome::pass);
  CHECK(job({{kUnknown, 0, 0, 0}}).outcome == Outcome::pass);  // without memory
  const Verdict few = job({{0.96, 1, 0, 6, 0.1}, {0.96, 0, 5, 6, 0.8}});
  CHECK(few.outcome == Outcome::inconclusive);  // a slow memory, or a short soak
  CHECK_THAT(few.cause, ContainsSubstring("rank 1 covered its memory by 5 of 6 patterns"));
  CHECK_THAT(few.cause, !ContainsSubstring("rank 0 covered"));
  CHECK(few.action ==
        "run again with --minutes 3 (launch/acceptance --full --soak-minutes 3)");  // 2.2 / 0.8
  CHECK(job({{0.96, 0, 5, 6, 0.8}}, "SIGTERM").action.empty());
  const Verdict stopped = job({{0.96, 1, 2, 6}}, "SIGTERM");  // of which all was covered by then
  CHECK(stopped.outcome == Outcome::inconclusive);
  CHECK_THAT(stopped.cause, Catch::Matchers::ContainsSubstring(
                                "stopped by SIGTERM after 120 of 300 s; 0 wrong in "));
  const Verdict none = job({{0.96, 1, 0, 6}, {0.96, 0, 0, 6}});
  CHECK(none.outcome == Outcome::inconclusive);
  CHECK_THAT(none.cause, ContainsSubstring("rank 1 covered its memory by 0 of 6 patterns"));
  CHECK(none.action.empty());
}

TEST_CASE("no FAIL of a soak lacks a class or an action", "[soak]") {
  auto all = windows(10);
  auto ranks = kRanks;
  for (Window& window : all) {
    window.ranks[0].thermal_share = window.ranks[0].hardware_slowdown_share = 0.5;
    window.kernel_events = {
        std::vector{KernelEvent{5, KernelEventKind::xid, "0000:1b:00", 48, "DBE"}}, {}, {}};
  }
  all[0].ranks[1].errors.ecc_uncorrected = 2;
  ranks[0].remap_pending = true;
  ranks[1].stalled = "nvmlDeviceGetPowerUsage";
  const auto verdicts = judge(all, {}, ranks);
  CHECK(verdicts.size() >= 6);
  for (const Verdict& verdict : verdicts) {
    CAPTURE(verdict.cause);
    CHECK(verdict.outcome == Outcome::fail);
    CHECK(verdict.class_);
    CHECK_FALSE(verdict.action.empty());
  }
  all[0].ranks[0].counts[0].wrong = 1;
  const Verdict unexplained = judge_job(all, {}, {});
  CHECK((unexplained.outcome == Outcome::fail && unexplained.class_));
  CHECK_FALSE(unexplained.action.empty());
}

TEST_CASE("the products of a soak are the judge's as those of compute_perf are", "[soak]") {
  auto all = windows(2);
  all[1].steady_products = ProductType::fp8;
  all[0].ranks[1].temperature_c = 71;
  all[1].ranks[1].temperature_c = 80;  // of another type
  ProductRates rates{{4000, 4001}, {1500, 1510, 1490}, {800}};
  const SoakedProduct product{
      {ProductType::bf16, 8192, 8192, 8192}, "cublasLt 13.1 algorithm 66", rates};
  const auto series = [&](const std::vector<Incident>& incidents, BackendKind kind) {
    return series_of({product}, all, incidents, 1, kind);
  };
  const auto gpu = series({}, BackendKind::gpu);
  REQUIRE(gpu.size() == 3);
  CHECK(gpu[0].metric.name == "product/bf16/flop_per_cycle_sm");
  CHECK(gpu[0].samples == rates.flop_per_cycle_sm);
  CHECK(gpu[1].samples == rates.clock_mhz);
  CHECK(gpu[2].samples == rates.tflops);
  CHECK(gpu[0].conditions.at("manner") == "sustained");
  CHECK(gpu[0].conditions.at("shape") == "8192x8192x8192");
  CHECK_THAT(gpu[0].conditions.at("algorithm"), !ContainsSubstring("13.1"));
  CHECK(gpu[2].clock_mhz == 1500);
  CHECK(gpu[0].window.temperature_c == 71);
  CHECK(series({}, BackendKind::cpu).size() == 1);
  Incident incident;
  incident.mismatch.load = "product bf16";
  incident.mismatch.cause = "the others contradict it";
  CHECK(series({incident}, BackendKind::gpu)[0].wrong.empty());  // of rank 0
  incident.rank = 1;
  CHECK_FALSE(series({incident}, BackendKind::gpu)[0].wrong.empty());
}

TEST_CASE("a soak of days leaves a line of some samples from all of its time", "[soak]") {
  ProductRates rates;
  for (int i = 0; i < 6000; ++i) rates.tflops.push_back(i);
  const auto series = series_of({{{}, "onednn", rates}}, windows(1), {}, 0, BackendKind::cpu);
  REQUIRE(series.size() == 1);
  CHECK(series[0].samples.size() == 60);
  CHECK(series[0].samples.front() == 0);
  CHECK(series[0].samples.back() == 5900);
}

TEST_CASE("the summary has each type's rate of checked products", "[soak]") {
  auto all = windows(4);
  all[1].steady_products = ProductType::fp8;
  all[0].ranks[0].checked_over_unchecked = 0.98;
  all[1].ranks[0].checked_over_unchecked = 0.95;
  all[2].ranks[1].checked_over_unchecked = 0.99;
  all[3].ranks[0].checked_over_unchecked = 0.3;
  for (Window& window : all)
    for (RankWindow& rank : window.ranks) rank.energy_j = 100;
  all[2].ranks[2].energy_j = kUnknown;  // a short window
  all[2].ranks[2].power_w = 50;         // for 10 s
  all[0].ranks[0].counts[0].self_compared = 4000;
  for (Window& window : all) window.products = ProductSpec{*window.steady_products, 512, 256, 128};
  all[3].steady_products.reset();  // a square wave
  all[2].ranks[1].counts[0].checked = 4000;
  all[1].ranks[0].counts[1] = {700, 0, 0, 0, 0, 10};
  all[1].ranks[1].counts[4] = {30, 2, 0, 1e9, 0, 10};
  const Json summary = summary_of(all, {{{0.961, 1, 0, 6}, {132, 131, 17, 1.02}, {}},
                                        {{0.962, 2, 1, 6}, {132, 132, 5, 1.01}, {}}});
  CHECK(summary.at("checked_over_unchecked.bf16") == Approx(0.985));
  CHECK(summary.at("checked_over_unchecked.fp8") == Approx(0.95));
  CHECK(summary.at("checked_over_unchecked") == Approx(0.9675));
  CHECK(summary.at("memory_share") == Json({0.961, 0.962}));
  CHECK(summary.at("processors_reached") == Json({131.0, 132.0}));
  CHECK(summary.at("slowest_processor") == Json({17.0, 5.0}));
  CHECK(summary.at("energy_j") == 1600);
  CHECK(summary.at("gpu_hours") == Approx(1. / 30));
  CHECK(summary.at("products") == 59000);
  CHECK(summary.at("products.bf16") == Json({15000.0, 14000.0}));
  CHECK(summary.at("product_turns.fp8") == Json({12.0, 12.0}));
  CHECK(summary.at("product_elements") == 512 * 256);
  CHECK(summary.at("products_self_compared") == 4000);
  CHECK(summary.at("probes") == 700);
  CHECK(summary.at("link_bytes") == 1e9);
  CHECK(summary.at("wrong") == 2);
  CHECK(std::isnan(energy_of(windows(1))));
  CHECK_FALSE(summary_of(windows(2), {{}}).contains("memory_share"));
  CHECK_FALSE(summary_of(windows(2), {{}}).contains("checked_over_unchecked"));
}

TEST_CASE("DCGM#55: what a device cannot run is never left out without a word", "[soak]") {
  using enum ProductType;
  const std::vector<std::vector<ProductType>> ranks{{fp32, bf16, fp8}, {fp32, bf16}};
  const TypeChoice choice = choose_types({"all"}, ranks);
  CHECK(choice.types == std::vector{fp32, bf16});
  CHECK(choice.remark ==
        "types left out, as not every device has them: fp64 (rank 0), tf32 (rank 0), fp16 "
        "(rank 0), fp8 (rank 1), int8 (rank 0)");
  CHECK(choose_types({"fp32"}, ranks).remark.empty());
  CHECK_THROWS_AS(choose_types({"fp32", "fp8"}, ranks), UsageError);
}

TEST_CASE("a mismatch becomes a verdict with serial, bits and circumstances", "[soak]") {
  Incident incident;
  incident.rank = 1;
  incident.mismatch.load = "product bf16";
  incident.mismatch.where = "tile 3,5";
  incident.mismatch.expected = 0x10;
  incident.mismatch.found = 0x11;
  incident.mismatch.cause = "the others contradict it";
  incident.temperature_c = 71;
  incident.capsule = "capsule-x.json";
  const auto verdicts = judge(windows(1), {incident, incident});
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].cause ==
        "rank 1 on n1, serial 2: product bf16 tile 3,5: expected 0x10, found 0x11: the others "
        "contradict it, 71 C; 1 more such mismatches; capsule capsule-x.json");
  incident.mismatch.action = "replace the GPU";
  incident.mismatch.class_ = Class::hardware;
  CHECK(judge(windows(1), {incident})[0].action == "replace the GPU");
  const std::vector<RankIdentity> on_cpu(kRanks.size(), {"n1", "", "", "EPYC"});
  const auto of_host = judge(windows(1), {incident}, on_cpu);
  CHECK_THAT(of_host[0].action, ContainsSubstring("its processor or memory"));
}

TEST_CASE("what all GPUs have is the job's, not the reporting rank's", "[soak]") {
  Incident incident;
  incident.mismatch.load = "product bf16";
  incident.mismatch.where = "tile 3,5";
  incident.mismatch.outcome = Outcome::inconclusive;
  incident.mismatch.of_all = true;
  const auto verdicts = judge(windows(1), {incident});
  REQUIRE(verdicts.size() == 1);
  CHECK((verdicts[0].scope == Scope::job && verdicts[0].name == "soak"));
  CHECK(verdicts[0].cause.starts_with("all devices of H200: product bf16 tile 3,5"));
  CHECK(record_of(incident, kRanks[0]).at("of_all") == true);
}

TEST_CASE("an XID within the soak is its GPU's, one that cannot be read is unknown", "[soak]") {
  auto all = windows(2);
  all[0].kernel_events = {std::vector<KernelEvent>{}, std::vector<KernelEvent>{}, std::nullopt};
  all[1].kernel_events = all[0].kernel_events;
  CHECK(judge(all).empty());
  for (Window& window : all)
    for (RankWindow& rank : window.ranks) rank.errors.nvlink_errors = 0;
  REQUIRE(unknown_health(all, kRanks).size() == 1);
  const std::string unknown = unknown_health(all, kRanks).front();
  CHECK(unknown == "XIDs not known on rank 2: /dev/kmsg cannot be read, or not in time");
  for (Window& window : all) window.ranks[1].errors.nvlink_errors = kUnknown;
  CHECK(unknown_health(all, kRanks).back() ==
        "NVLink errors not known on rank 1: the driver does not report them");
  CHECK_THAT(judge_job(all, {}, {{}, {}, {unknown}}).cause, ContainsSubstring("; " + unknown));
  auto without_gpu = kRanks;
  without_gpu[2].uuid.clear();
  without_gpu[1].uuid.clear();
  CHECK(unknown_health(all, without_gpu).empty());
  all[1].kernel_events[1]->push_back({5, KernelEventKind::xid, "0000:1b:00", 48, "DBE"});
  const auto verdicts = judge(all);
  REQUIRE(briefs(verdicts) == Texts{"FAIL GPU-b HARDWARE"});
  CHECK(verdicts[0].cause.find("during the soak") != std::string::npos);
  CHECK(record_of(all[1]).at("xids") == Json({"", "48", nullptr}));
}

}  // namespace shakedown::node
