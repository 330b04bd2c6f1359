// The rules on a GPU's reading: each has a case that trips it and one that must not, and every way
// in which another tool passed what it had not measured is a case of its own.
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "common/error.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

using Change = std::function<void(GpuReading&)>;

struct Setting {
  int peers = 7;  // healthy ones
  bool under_load = false;
  Change of_peers = [](GpuReading&) {};
};

/// All findings about a healthy GPU after `change`.
std::vector<Finding> findings_of(const Change& change, const Setting& setting = {}) {
  std::vector<GpuReading> gpus;
  for (int i = 0; i <= setting.peers; ++i) {
    gpus.push_back(healthy_h200(i));
    if (i > 0) setting.of_peers(gpus.back());
  }
  change(gpus[0]);
  GpuContext context;
  context.our_pids = {4711};
  context.under_load = setting.under_load;
  for (const GpuReading& gpu : gpus) context.peers.push_back(&gpu);
  context.all = context.node = context.peers;
  return judge_gpu("n0", gpus[0], context);
}

Finding look_at(const std::string& rule, const Change& change, const Setting& setting = {}) {
  for (const Finding& finding : findings_of(change, setting))
    if (finding.check == rule) return finding;
  throw InternalError("no rule " + rule);
}

struct Case {
  const char* rule;
  Change change;
  MaybeOutcome outcome;
  std::optional<Class> class_ = std::nullopt;
  const char* action = "";  // a part of it
  Setting setting = {};
};

using enum Outcome;
using enum Class;

Setting alone() { return {0}; }
Setting loaded() { return {7, true}; }
Setting all_with(Change change) { return {7, false, std::move(change)}; }
Setting both_with(Change change) { return {1, false, std::move(change)}; }

void links_down(GpuReading& gpu) {
  for (std::size_t i = 12; i < 18; ++i) gpu.nvlinks[i].active = false;
}
void no_link_up(GpuReading& gpu) {
  for (NvlinkReading& link : gpu.nvlinks) link.active = false;
}
void h100_nvl(GpuReading& gpu) {
  gpu.model = "NVIDIA H100 NVL";
  gpu.pci_device_id = "10de:2321";
  gpu.fabric_state = "not_supported";  // its links go to bridges
  links_down(gpu);
}
void half_of_unknown(GpuReading& gpu) {  // a board that is in no table
  gpu.model = "NVIDIA Z900";
  gpu.pci_device_id = "10de:ffff";
  links_down(gpu);
}
void no_link_of_unknown(GpuReading& gpu) {
  half_of_unknown(gpu);
  no_link_up(gpu);
}
void no_link_of_b300(GpuReading& gpu) {
  gpu.model = "NVIDIA B300 SXM6 AC";
  gpu.pci_device_id = "10de:3182:10de:20e6";
  gpu.fabric_state.reset();
  no_link_up(gpu);
}
void without_fabric_state(GpuReading& gpu) {
  half_of_unknown(gpu);
  gpu.fabric_state.reset();
}
void invalid_argument(GpuReading& gpu) { gpu.failed = {"nvmlX: Invalid Argument"}; }
void many_corrected(GpuReading& gpu) { gpu.volatile_.corrected = gpu.index == 0 ? 100000 : 90000; }
void gb200_in_no_slot(GpuReading& gpu) { gpu.pci_device_id = "10de:2941", gpu.max_pcie_width = 1; }
void times_out(GpuReading& gpu) { gpu.failed = {"nvmlDeviceGetName: Timeout"}; }
void pcie_card(GpuReading& gpu) {
  gpu.model = "NVIDIA L40S";
  gpu.pci_device_id = "10de:26b9";
  gpu.nvlinks.clear();
  gpu.nvlink_count = 0;
  gpu.fabric_state = "not_supported";
  gpu.fabric_status.reset();
}
void of_another(GpuReading& gpu) { gpu.processes->push_back({99, 1u << 30}); }
void ours(GpuReading& gpu) {
  gpu.memory_used_bytes = 1u << 30;
  gpu.processes->push_back({4711, {}});
}

const std::vector<Case>& sick_cases() {
  static const std::vector<Case> cases{
      {"management-stall", [](auto& g) { g.stalled = {"nvmlDeviceGetPowerUsage"}; }, fail, hardware,
       "reset GPU"},
      {"management-error", [](auto& g) { g.failed = {"nvmlDeviceGetName: GPU is lost"}; }, fail,
       hardware, "reboot"},
      {"management-error", [](auto& g) { g.failed = {"nvmlDeviceGetName: Unknown Error"}; }, fail,
       hardware, "reset GPU"},
      {"management-error", [](auto& g) { g.failed = {"nvmlX: GPU requires reset"}; }, fail,
       hardware, "reset GPU"},
      {"management-error", [](auto& g) { g.failed = {"nvmlX: Interrupt Request Issue"}; }, fail,
       hardware, "reset GPU"},
      {"management-error", [](auto& g) { g.failed = {"nvmlX: Corrupted infoROM"}; }, fail, hardware,
       "RMA"},
      {"management-error", [](auto& g) { g.failed = {"nvmlX: ECC error"}; }, fail, hardware,
       "reset GPU"},
      // gpustack/runtime#26: an error is not "not supported", and these others of the node answer.
      {"management-error", times_out, fail, hardware, "reset GPU"},
      {"management-error", [](auto& g) { g.failed = {"nvmlX: In use by another client"}; }, fail,
       hardware, "reset GPU"},
      {"management-error", invalid_argument, fail, hardware},
      {"sane-readings", [](auto& g) { g.power_w = 0; }, fail, hardware, "reset GPU"},
      {"sane-readings", [](auto& g) { g.temperature_c = 4294967295.0; }, fail, hardware},
      {"sane-readings", [](auto& g) { g.memory_clock_mhz = 0; }, fail, hardware},
      {"sane-readings", [](auto& g) { g.power_w = NAN; }, fail, hardware},
      {"sane-readings", [](auto& g) { g.memory_used_bytes = 1ull << 60; }, fail, hardware},
      {"sane-readings", [](auto& g) { g.volatile_.uncorrected = ~0ull; }, fail, hardware},
      {"gpu-model", [](auto& g) { g.model = "NVIDIA H100 80GB HBM3"; }, warn, config, "one model"},
      {"gpu-unique", [](auto& g) { g.uuid = "GPU-n0-3"; }, fail, infrastructure, "host names"},
      {"vbios", [](auto& g) { g.vbios = "96.00.A5.00.02"; }, warn, config, "96.00.A5.00.01"},
      {"gpu-memory-size", [](auto& g) { *g.memory_total_bytes /= 2; }, fail, hardware},
      {"recovery-action", [](auto& g) { g.recovery_action = "reset"; }, fail, hardware,
       "reset GPU"},
      {"recovery-action", [](auto& g) { g.recovery_action = "reboot"; }, fail, hardware, "reboot"},
      {"recovery-action", [](auto& g) { g.recovery_action = "drain_p2p"; }, fail, hardware,
       "peer-to-peer"},
      {"recovery-action", [](auto& g) { g.recovery_action = "drain_and_reset"; }, fail, hardware,
       "drain the node, then reset"},
      {"recovery-action", [](auto& g) { g.recovery_action = "7"; }, fail, hardware, "drain"},
      // Recovered errors are not sickness by themselves (gpud#108); growth is: nodes_test.cpp.
      {"ecc-volatile", [](auto& g) { g.volatile_.uncorrected = 1; }, warn, hardware, "RMA if"},
      {"ecc-volatile", [](auto& g) { g.volatile_.uncorrected = 1, g.remap_pending = true; }, fail,
       hardware, "reset GPU"},
      {"ecc-volatile", [](auto& g) { g.volatile_.uncorrected = 1, g.remap_failure.reset(); }, fail,
       hardware, "reset GPU"},
      {"ecc-volatile", [](auto& g) { g.volatile_.uncorrected = 1, g.recovery_action = "reset"; },
       fail, hardware, "reset GPU"},
      {"ecc-corrected", [](auto& g) { g.volatile_.corrected = 1001; }, warn, hardware, "run again"},
      {"ecc-aggregate", [](auto& g) { g.aggregate_sram_uncorrected = 5; }, warn, hardware,
       "RMA candidate"},
      {"ecc-aggregate", [](auto& g) { g.sram_threshold_exceeded = true; }, fail, hardware, "RMA"},
      {"row-remap", [](auto& g) { g.remap_pending = true; }, fail, hardware, "reset GPU"},
      {"row-remap", [](auto& g) { g.remap_failure = true; }, fail, hardware, "RMA"},
      // A busy GPU may show it for a moment: another job's, in a passive check.
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x8; }, warn, hardware, "power"},
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x88, g.utilisation_percent = 100; },
       warn, environment, "power supplies"},
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x8; }, fail, hardware, "power",
       loaded()},
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x88; }, fail, environment,
       "power supplies", loaded()},
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x48; }, warn, environment,
       "cooling"},
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x4; }, warn, config, "power limit"},
      {"clocks", [](auto& g) { g.max_sm_clock_mhz = 1500; }, fail, config, "-rgc"},
      {"clocks", [](auto& g) { g.throttle_reasons = 0x2; }, warn, config, "-rac"},
      {"power-limit", [](auto& g) { g.power_limit_w = 500; }, fail, config, "-pl 700"},
      {"power-limit", [](auto& g) { g.power_limit_w = 500; }, warn, config, "-pl 700",
       all_with([](auto& g) { g.power_limit_w = 500; })},
      {"temperature", [](auto& g) { g.temperature_margin_c = 2; }, warn, environment, "cooling"},
      {"temperature", [](auto& g) { g.memory_temperature_c = 99; }, warn, environment, "cooling"},
      {"persistence", [](auto& g) { g.persistence = false; }, warn, config, "-pm 1"},
      {"ecc-mode", [](auto& g) { g.ecc_enabled = false; }, fail, config, "-e 1"},
      {"ecc-mode", [](auto& g) { g.ecc_enabled = false; }, warn, config, "-e 1", alone()},
      {"mig", [](auto& g) { g.mig_enabled = true; }, warn, config, "on purpose"},  // DCGM#70
      {"compute-mode", [](auto& g) { g.compute_mode = "prohibited"; }, fail, config, "-c 0"},
      {"compute-mode", [](auto& g) { g.compute_mode = "exclusive_process"; }, warn, config},
      {"foreign-use", of_another, warn, environment, "end"},
      {"foreign-use", [](auto& g) { g.memory_used_bytes = 16u << 20; }, warn, environment, "fuser"},
      {"nvlink-count", links_down, fail, hardware, "inspect links"},
      {"nvlink-count", links_down, fail, config, "fabricmanager", all_with(links_down)},
      {"nvlink-count", [](auto& g) { g.nvlinks.clear(), g.nvlink_count = 0; }, fail, hardware},
      {"nvlink-count", no_link_up, fail, hardware, "inspect links"},
      // No link of any GPU of the node: the fabric manager, however few they are.
      {"nvlink-count", no_link_up, fail, config, "fabricmanager", alone()},
      {"nvlink-count", no_link_up, fail, config, "fabricmanager", both_with(no_link_up)},
      // All GPUs alike: their majority is no witness where the board has NVSwitches.
      {"nvlink-count", half_of_unknown, fail, config, "fabricmanager", all_with(half_of_unknown)},
      {"nvlink-count", no_link_of_unknown, fail, config, "fabricmanager",
       all_with(no_link_of_unknown)},
      {"nvlink-count", half_of_unknown, fail, hardware, "inspect links",
       both_with(half_of_unknown)},
      {"nvlink-count", no_link_of_b300, fail, config, "fabricmanager", alone()},
      {"nvlink-count", no_link_of_b300, fail, config, "fabricmanager", all_with(no_link_of_b300)},
      {"nvlink-count",
       [](auto& g) {
         no_link_of_b300(g), g.pci_device_id.clear(), g.nvlinks.clear(), g.nvlink_count = 0;
       },
       fail, config, "fabricmanager", alone()},  // by its name
      {"nvlink-speed", [](auto& g) { g.nvlinks[3].speed_mbs = 13281; }, fail, hardware, "link"},
      {"nvlink-errors", [](auto& g) { g.nvlinks[3].crc_errors = 1001; }, warn, hardware, "link"},
      {"nvlink-fabric", [](auto& g) { g.fabric_state = "not_started"; }, fail, software,
       "nvidia-fabricmanager"},
      {"nvlink-fabric", [](auto& g) { g.fabric_status = "NVML_ERROR_UNKNOWN"; }, fail,
       infrastructure, "fabricmanager.log"},
      {"nvlink-fabric", [](auto& g) { g.fabric_health = "unhealthy"; }, fail, infrastructure,
       "NVSwitches"},
      {"pcie-link", [](auto& g) { g.max_pcie_width = 8; }, fail, hardware, "reseat"},
      {"pcie-link", [](auto& g) { g.max_pcie_width = 8; }, warn, config, "reseat", alone()},
      {"pcie-link", [](auto&) {}, fail, hardware, "reseat", loaded()},  // Gen1 under load
      {"pcie-replays", [](auto& g) { g.pcie_replays = 1001; }, warn, hardware, "reseat"},
      {"gpu-identity", [](auto& g) { g.serial.clear(); }, unknown},
  };
  return cases;
}

/// What looks odd and is not sick.
const std::vector<Case>& healthy_cases() {
  static const std::vector<Case> cases{
      // H100 NVL has 12 of 18 links by design (AzNHC#162), a PCIe card none (NVSentinel#1481).
      {"nvlink-count", h100_nvl, pass, {}, "", all_with(h100_nvl)},
      {"nvlink-count", pcie_card, pass, {}, "", all_with(pcie_card)},
      {"nvlink-speed", pcie_card, pass, {}, "", all_with(pcie_card)},
      {"nvlink-errors", pcie_card, pass, {}, "", all_with(pcie_card)},
      {"nvlink-fabric", pcie_card, pass, {}, "", all_with(pcie_card)},
      {"nvlink-count", [](auto&) {}, pass, {}, "", alone()},
      {"nvlink-errors", [](auto& g) { g.nvlinks[3].crc_errors = 1000; }, pass},
      {"pcie-link", [](auto& g) { g.pcie_generation = 5; }, pass, {}, "", loaded()},
      {"pcie-link", gb200_in_no_slot, pass, {}, "", alone()},
      {"pcie-replays", [](auto& g) { g.pcie_replays = 1000; }, pass},
      // Recovered errors are not sickness by themselves (gpud#108).
      {"row-remap", [](auto& g) { g.remapped_uncorrected = 2; }, pass},
      {"ecc-aggregate", [](auto& g) { g.aggregate_sram_uncorrected = 4; }, pass},
      {"ecc-corrected", [](auto& g) { g.volatile_.corrected = 1000; }, pass},
      {"ecc-corrected", many_corrected, pass, {}, "", all_with(many_corrected)},
      {"throttle-reasons", [](auto& g) { g.throttle_reasons = 0x4; }, pass, {}, "", loaded()},
      {"power-limit", [](auto& g) { g.power_limit_w = 700.4; }, pass},
      {"foreign-use", [](auto& g) { g.memory_used_bytes = 15u << 20; }, pass},
      {"foreign-use", ours, pass},
      {"management-error", [](auto& g) { g.failed = {"nvmlX: Insufficient Permissions"}; },
       unknown},
      {"management-error", invalid_argument, unknown, {}, "", all_with(invalid_argument)},
      {"vbios", [](auto& g) { g.vbios = "1"; }, warn, config, "", {1}},  // named without blame
  };
  return cases;
}

/// Neither passes nor lets the node pass.
void check_undecided(const Finding& finding) {
  INFO(line_of(finding.verdict));
  CHECK(verdict_of_job({finding}, false).outcome == Outcome::inconclusive);
  CHECK(finding.outcome == Outcome::inconclusive);
  CHECK_FALSE(finding.verdict.action.empty());
}

void check_case(const Case& tried) {
  const Finding finding = look_at(tried.rule, tried.change, tried.setting);
  INFO(tried.rule << ": " << line_of(finding.verdict));
  CHECK(std::string(text_of(finding.outcome)) == text_of(tried.outcome));
  CHECK(finding.verdict.class_ == tried.class_);
  CHECK_THAT(finding.verdict.action, ContainsSubstring(tried.action));
  CHECK_FALSE(finding.verdict.cause.empty());
  CHECK(finding.verdict.name.starts_with("GPU-n0-"));
}

}  // namespace

TEST_CASE("each rule has a reading that trips it, and passes on a healthy GPU", "[node][rules]") {
  std::set<std::string> tripped;
  for (const Case& sick : sick_cases()) {
    check_case(sick);
    tripped.insert(sick.rule);
  }
  for (const GpuRule& rule : gpu_rules()) {
    INFO(rule.name);
    CHECK(tripped.contains(rule.name));
    CHECK(std::string(rule.what) != "");
  }
  for (int peers : {0, 1, 7})
    for (const Finding& finding : findings_of([](auto&) {}, {peers})) {
      INFO(finding.check << ": " << finding.verdict.cause);
      CHECK(finding.outcome == pass);
      CHECK(finding.verdict.action.empty());
    }
}

TEST_CASE("a recorded H200 is healthy, what its VM hides is unknown", "[node][rules]") {
  const HostGpus host =
      host_gpus_of(Json::parse(std::ifstream("tests/node/fixtures/h200_recorded.json")));
  GpuContext context;
  for (const GpuReading& gpu : host.gpus) context.peers.push_back(&gpu);
  context.all = context.peers;
  std::set<std::string> not_passed;
  for (const Finding& finding : judge_gpu("n0", host.gpus.at(0), context)) {
    if (finding.outcome == pass) continue;
    CHECK(finding.outcome == unknown);
    not_passed.insert(finding.check);
  }
  CHECK(not_passed == std::set<std::string>{"nvlink-count", "nvlink-speed", "nvlink-errors"});
}

TEST_CASE("what looks odd and is not sick is not blamed", "[node][rules]") {
  for (const Case& healthy : healthy_cases()) check_case(healthy);
}

TEST_CASE("an error of all GPUs, or links that nobody knows, is no pass", "[node][rules][closed]") {
  check_undecided(look_at("management-error", times_out, alone()));
  check_undecided(look_at("management-error", times_out, all_with(times_out)));
  check_undecided(look_at("nvlink-count", without_fabric_state, all_with(without_fabric_state)));
  // The worst of two errors decides, whichever comes first.
  const auto two = [](auto& g) {
    g.failed = {"nvmlX: Insufficient Permissions", "nvmlY: Timeout"};
  };
  check_undecided(look_at("management-error", two, alone()));
}

TEST_CASE("a sick GPU is named though its peers are, and they are not", "[node][rules]") {
  const auto setting = all_with([](auto& g) { g.max_pcie_width = 16; });
  const auto narrow = [](auto& g) { g.max_pcie_width = 8; };
  CHECK(look_at("pcie-link", narrow, setting).subject == "GPU 0");
}

TEST_CASE("CRE#5: a reading without any measurement passes no rule", "[node][rules][closed]") {
  const std::set<std::string> none_needed{"management-stall", "management-error"};
  for (int peers : {0, 7})
    for (const Finding& finding : findings_of([](auto& g) { g = {}, g.index = 0; }, {peers})) {
      INFO(finding.check << ": " << finding.verdict.cause);
      if (!none_needed.contains(finding.check)) CHECK(finding.outcome == unknown);
    }
}

TEST_CASE("PCIe's width under load is unknown where it is missing", "[node][rules][closed]") {
  const auto no_width = [](auto& g) { g.pcie_width.reset(); };
  CHECK(look_at("pcie-link", no_width, loaded()).outcome == unknown);
}

TEST_CASE("gpu-fryer#11: values that cannot be are a failure", "[node][rules][closed]") {
  const auto broken = [](GpuReading& g) {
    g.power_w = 0, g.temperature_c = 4294967295.0, g.sm_clock_mhz = 0;
  };
  const auto findings = findings_of(broken);
  CHECK(look_at("sane-readings", broken).outcome == fail);
  CHECK(verdict_of_job(findings, false).outcome == Outcome::fail);
}

TEST_CASE("NVSentinel#1748: a stall names GPU and call", "[node][rules][closed]") {
  const Finding finding =
      look_at("management-stall", [](auto& g) { g.stalled = {"nvmlDeviceGetFieldValues"}; });
  CHECK(finding.outcome == fail);
  CHECK(finding.subject == "GPU 0");
  CHECK_THAT(finding.verdict.cause, ContainsSubstring("nvmlDeviceGetFieldValues"));
}

TEST_CASE("gpud#1085: an inactive NVLink is a failure", "[node][rules][closed]") {
  const auto inactive = [](auto& g) { g.nvlinks[7].active = false; };
  CHECK(verdict_of_job(findings_of(inactive), false).outcome == Outcome::fail);
  CHECK_THAT(look_at("nvlink-count", inactive).verdict.cause, ContainsSubstring("inactive: 7"));
}

TEST_CASE("soperator: what is unknown is counted", "[node][rules][closed]") {
  const auto without = [](auto& g) { g.recovery_action.reset(); };
  const auto findings = findings_of(without);
  CHECK(count(findings).unknown == 1);
  CHECK(verdict_of_job(findings, false).outcome == Outcome::pass);
  CHECK_THAT(verdict_of_job(findings, false).cause, ContainsSubstring("unknown: 1"));
  CHECK(verdict_of_job(findings, true).outcome == Outcome::inconclusive);
  CHECK(record_of(look_at("recovery-action", without)).at("verdict") == "UNKNOWN");
  // gpu-burn#123: where nothing could be read the job has not passed.
  CHECK(verdict_of_job({}, false).outcome == Outcome::inconclusive);
  const std::vector<Finding> only_unknown{
      finding_of("gpu-count", not_known("no driver"), Scope::node, "n0")};
  CHECK(verdict_of_job(only_unknown, false).outcome == Outcome::inconclusive);
}

TEST_CASE("a majority is more than half of at least three", "[node][majority]") {
  CHECK(majority_of<int>({}) == std::nullopt);
  CHECK(majority_of<int>({1, 1}) == std::nullopt);
  CHECK(majority_of<int>({1, 1, 2}) == 1);
  CHECK(majority_of<int>({1, 1, 2, 2}) == std::nullopt);
  CHECK(majority_of<int>({1, 2, 3}) == std::nullopt);
}

TEST_CASE("a warning's record has its outcome, check and host", "[node][rules]") {
  const Json record = record_of(look_at("persistence", [](auto& g) { g.persistence = false; }));
  CHECK(record.at("verdict") == "WARN");
  CHECK(record.at("check") == "persistence");
  CHECK(record.at("host") == "n0");
  CHECK(record.at("class") == "CONFIG");
  CHECK(record.at("scope") == "gpu");
}

}  // namespace shakedown::node
