// Verdicts of a soak from made-up windows.
#include "launch/node/soak/findings.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/node/soaked.hpp"
#include "tests/support.hpp"
#include "tests/support/verdicts.hpp"

namespace shakedown::node {
namespace {

using test::briefs;
using test::kRanks;
using test::windows;

std::vector<Verdict> judge(const std::vector<Window>& all,
                           const std::vector<Incident>& incidents = {},
                           const std::vector<RankIdentity>& ranks = kRanks) {
  return judge_soak(all, incidents, ranks);
}

}  // namespace

TEST_CASE("a soak without windows proves nothing; one with windows has its power", "[soak]") {
  CHECK(judge_job({}, {}, {}).outcome == Outcome::inconclusive);
  JobFacts facts{{LoadKind::products}};
  facts.power = "power at 95 %: one product in 50000";
  CHECK_THAT(judge_job(windows(1), {}, facts).cause, EndsWith("at 95 %; " + facts.power));
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
  const std::vector<ProductType> soak = soaked(all_product_types());
  const TypeChoice choice = choose_types(soak, {"all"}, ranks);
  CHECK(choice.types == std::vector{fp32, bf16});
  CHECK(choice.remark ==
        "types left out, as not every device has them: fp64 (rank 0), tf32 (rank 0), fp16 "
        "(rank 0), fp8 (rank 1), int8 (rank 0)");
  CHECK(choose_types(soak, {"fp32"}, ranks).remark.empty());
  CHECK_THROWS_AS(choose_types(soak, {"fp32", "fp8"}, ranks), UsageError);
  CHECK_THROWS_WITH(choose_types(all_product_types(), {"nvfp4"}, ranks),
                    "--types nvfp4: the device of rank 0 has only fp32, bf16, fp8");
  CHECK(choose_types(all_product_types(), {}, ranks)
            .remark.ends_with("mxfp8 (rank 0), nvfp4 (rank 0)"));
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
  auto with_mig = kRanks;
  with_mig[2].uuid = "MIG-c";
  CHECK(unknown_health(all, with_mig).back() ==
        "health of the MIG instance alone not known on rank 2: the driver reports its GPU's");
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
