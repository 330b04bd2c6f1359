// Verdicts of a soak from made-up windows; its schedule; the CPU as a juror; the kernel's messages.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/findings.hpp"
#include "launch/node/soak/health_findings.hpp"
#include "launch/node/soak/host_tile.hpp"
#include "launch/node/soak/product_rig.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {
namespace {

const std::vector<RankIdentity> kRanks{
    {"n1", "GPU-a", "1", "H200"}, {"n1", "GPU-b", "2", "H200"}, {"n1", "GPU-c", "3", "H200"}};

RankWindow healthy() {
  RankWindow rank;
  rank.seconds = 10;
  rank.product_seconds = 10;
  rank.flop = 6e15;
  rank.checked[0] = 5000;
  rank.hardware_slowdown_share = rank.thermal_share = 0;
  rank.power_cap_share = 1;
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
  return judge_soak(all, incidents, ranks, {}, {});
}

}  // namespace

TEST_CASE("healthy GPUs at the power cap have no finding", "[soak]") {
  const auto all = windows(10);
  CHECK(judge(all).empty());
  const Verdict job = judge_job(all, {LoadKind::products}, {}, "");
  CHECK(job.outcome == Outcome::pass);
  CHECK(job.cause == "0 wrong in 1.5e5 products: rate below 36 per GPU-hour at 95 %");
}

TEST_CASE("DCGM#242: throttling is judged by its share of the time, none is no violation",
          "[soak]") {
  auto all = windows(10);
  const auto judged = [&](double RankWindow::*share, double value) {
    for (Window& window : all) window.ranks[1].*share = value;
    return judge(all);
  };
  CHECK(judged(&RankWindow::thermal_share, 0.009).empty());
  const auto warned = judged(&RankWindow::thermal_share, 0.02);
  REQUIRE(warned.size() == 1);
  CHECK(warned[0].outcome == Outcome::pass);
  CHECK_THAT(warned[0].cause, ContainsSubstring("a warning"));
  const auto hot = judged(&RankWindow::thermal_share, 0.06);
  REQUIRE(hot.size() == 1);
  CHECK(hot[0].outcome == Outcome::fail);
  CHECK(hot[0].class_ == Class::environment);
  CHECK(hot[0].name == "GPU-b");
  judged(&RankWindow::thermal_share, 0);
  CHECK(judged(&RankWindow::hardware_slowdown_share, 0.001)[0].outcome == Outcome::fail);
  CHECK(judged(&RankWindow::hardware_slowdown_share, kUnknown).empty());
}

TEST_CASE("a slow GPU is named, and unanswered calls and errors are", "[soak]") {
  auto all = windows(10);
  for (Window& window : all) window.ranks[2].flop *= 0.8;
  const auto slow = judge(all);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].name == "GPU-c");
  CHECK(slow[0].outcome == Outcome::fail);
  CHECK_THAT(slow[0].cause, ContainsSubstring("serial 3: slow, 0.80 of the median rate"));
  all = windows(10);
  all[3].ranks[0].errors.ecc_uncorrected = 1;
  CHECK(judge(all)[0].outcome == Outcome::fail);
  all[3].ranks[0].errors.ecc_uncorrected = 0;
  all[3].ranks[0].errors.ecc_corrected = 7;
  CHECK(judge(all)[0].outcome == Outcome::pass);
  auto ranks = kRanks;
  ranks[1].stalled = "nvmlDeviceGetPowerUsage";
  const auto stalled = judge(windows(1), {}, ranks);
  REQUIRE(stalled.size() == 1);
  CHECK(stalled[0].name == "GPU-b");
  CHECK(stalled[0].outcome == Outcome::fail);
}

TEST_CASE("what was not checked never passes", "[soak]") {
  auto all = windows(3);
  CHECK(judge_job({}, {}, {}, "").outcome == Outcome::inconclusive);
  const Verdict none = judge_job(all, {LoadKind::products, LoadKind::memory}, {}, "");
  CHECK(none.outcome == Outcome::inconclusive);
  CHECK_THAT(none.cause, ContainsSubstring("rank 2 checked no memory"));
  for (Window& window : all) window.ranks[1].checked[0] = 0;
  CHECK(judge_job(all, {LoadKind::products}, {}, "").outcome == Outcome::inconclusive);
  all = windows(3);
  all[1].ranks[0].wrong[0] = 1;  // that nothing explains
  CHECK(judge_job(all, {LoadKind::products}, {}, "").outcome == Outcome::fail);
}

TEST_CASE("a mismatch becomes a verdict with serial, bits and circumstances", "[soak]") {
  Incident incident;
  incident.rank = 1;
  incident.mismatch.load = "product bf16";
  incident.mismatch.where = "tile 3,5";
  incident.mismatch.expected = 0x10;
  incident.mismatch.found = 0x11;
  incident.mismatch.cause = "the other GPUs contradict it";
  incident.temperature_c = 71;
  incident.capsule = "capsule-x.json";
  const auto verdicts = judge(windows(1), {incident, incident});
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].cause ==
        "rank 1 on n1, serial 2: product bf16 tile 3,5: expected 0x10, found 0x11: the other GPUs "
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
  CHECK(unknown_xids(all) == "XIDs: unknown on rank 2: /dev/kmsg cannot be read");
  all[1].kernel_events[1]->push_back({5, false, "0000:1b:00", 48, "DBE"});
  const auto verdicts = judge(all);
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].name == "GPU-b");
  CHECK(verdicts[0].outcome == Outcome::fail);
  CHECK(verdicts[0].cause.find("during the soak") != std::string::npos);
  CHECK(record_of(all[1]).at("xids") == Json({"", "48", nullptr}));
}

TEST_CASE("a watch of the kernel's messages has the GPU's new events alone", "[soak]") {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("kernel-watch-" + std::to_string(getpid()));
  const auto write = [&](const std::string& name, const std::string& text) {
    fs::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  };
  write("proc/uptime", "100.0 1.0");
  KernelWatch watch("0000:1B:00.0", root.string());
  CHECK(!watch.events());
  const auto line = [](int second, const char* device) {
    return "4,1," + std::to_string(second) + "000000,-;NVRM: Xid (PCI:" + device + "): 48, DBE\n";
  };
  write("proc/uptime", "120.0 1.0");
  write("dev/kmsg", line(99, "0000:1b:00") + line(110, "0000:1b:00") + line(111, "0000:1c:00"));
  const auto events = watch.events();
  REQUIRE(events);
  REQUIRE(events->size() == 1);
  CHECK(events->front().age_s == Approx(10));
  CHECK(watch.events()->empty());
  CHECK(same_pci_device("0000:1b:00", "00000000:1B:00.0"));
  CHECK_FALSE(same_pci_device("", ""));
  fs::remove_all(root);
}

TEST_CASE("a cycle has every load on its own, a square wave and a mixture", "[soak]") {
  const std::vector<ProductType> types{ProductType::fp32, ProductType::bf16};
  const auto names = [&](const std::vector<std::string>& shapes,
                         const std::vector<std::string>& loads, bool alone, int cycle) {
    std::vector<std::string> found;
    for (const Phase& phase : phases_of_cycle(shapes, loads, types, alone, cycle))
      found.push_back(phase.name());
    return found;
  };
  CHECK(names({"all"}, {"products", "copies", "collectives"}, false, 0) ==
        std::vector<std::string>{"steady products fp32", "steady products bf16", "steady copies",
                                 "steady collectives", "square products fp32 2 Hz",
                                 "mixed products bf16, copies, collectives"});
  CHECK(names({"square"}, {"all"}, true, 1) ==
        std::vector<std::string>{"square products bf16 0.5 Hz"});
  CHECK(names({"mixed"}, {"collectives"}, true, 0).empty());
  CHECK(window_seconds(900, 12) == 10);
  CHECK(window_seconds(7.2, 12) == Approx(0.1));
}

TEST_CASE("the CPU's tile is what the device computes, and wrong bits lie beyond it", "[soak]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  for (const ProductType type : product_types(*device)) {
    CAPTURE(name_of(kind), name_of(type));
    const ProductSpec spec{type, 256, 128, 256};
    ProductRig rig(spec, *device, "", 1, std::nullopt);
    rig.fill(Operands::integers, 5);
    rig.run_checked(0, 0);
    const HostTile exact = host_tile(spec, Operands::integers, 5, 1);
    CHECK(rig.record(0, 1).first == hash_of_tile(encoded(exact, result_type(type))));
    CHECK(beyond_bound(exact, rig.tile_bytes(1), result_type(type)).empty());
    rig.fill(Operands::full_entropy, 5);
    rig.run_checked(0, 0);
    const HostTile near = host_tile(spec, Operands::full_entropy, 5, 1);
    auto bytes = rig.tile_bytes(1);
    CHECK(beyond_bound(near, bytes, result_type(type)).empty());
    // The second element becomes huge: its exponent's bits are set, or one of an integer's flips.
    auto& top = bytes[2 * size_of(result_type(type)) - 1];
    top = type == ProductType::int8 ? top ^ std::byte{0x40} : top | std::byte{0x7F};
    CHECK(beyond_bound(near, bytes, result_type(type)) == std::vector<std::size_t>{1});
  }
}

}  // namespace shakedown::node
