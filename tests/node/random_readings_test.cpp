// Readings at random: with anything missing or impossible no rule passes what it has not seen.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/finding.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/node_rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

/// Makes a healthy reading sick: each field is kept, lost, or another value.
class Spoiler {
 public:
  explicit Spoiler(unsigned seed) : random_(seed) {}

  GpuReading reading(int index) {
    GpuReading gpu = healthy_h200(index);
    for (std::string* text : {&gpu.uuid, &gpu.model, &gpu.serial, &gpu.vbios, &gpu.pci_id})
      if (loses()) *text = pick<std::string>({"", " ", "unknown", std::string(300, 'x'), "\xff"});
    for (auto* value :
         {&gpu.sm_clock_mhz, &gpu.memory_clock_mhz, &gpu.max_sm_clock_mhz,
          &gpu.max_memory_clock_mhz, &gpu.power_w, &gpu.power_limit_w, &gpu.power_limit_default_w,
          &gpu.temperature_c, &gpu.memory_temperature_c, &gpu.temperature_margin_c,
          &gpu.utilisation_percent, &gpu.memory_utilisation_percent})
      spoil(*value, {NAN, INFINITY, -INFINITY, -1, 0, 4294967295.0, 1e300});
    for (auto* value : {&gpu.memory_used_bytes, &gpu.memory_total_bytes, &gpu.throttle_reasons,
                        &gpu.volatile_.corrected, &gpu.volatile_.uncorrected,
                        &gpu.aggregate_sram_uncorrected, &gpu.pcie_replays})
      spoil(*value, {0u, 1u, 0xffffffffu, ~0ull, 1ull << 40});
    for (auto* value : {&gpu.persistence, &gpu.ecc_enabled, &gpu.mig_enabled,
                        &gpu.sram_threshold_exceeded, &gpu.remap_pending, &gpu.remap_failure})
      spoil(*value, {true, false});
    for (auto* value : {&gpu.pcie_generation, &gpu.pcie_width, &gpu.max_pcie_generation,
                        &gpu.max_pcie_width, &gpu.nvlink_count, &gpu.remapped_corrected})
      spoil(*value, {-1, 0, 1, 16, std::numeric_limits<int>::max()});
    for (auto* value : {&gpu.compute_mode, &gpu.recovery_action, &gpu.fabric_state,
                        &gpu.fabric_status, &gpu.fabric_health})
      spoil(*value, {"", "none", "completed", "success", "17", "default"});
    if (loses()) gpu.nvlinks.resize(pick<std::size_t>({0, 1, 17, 18, 40}));
    for (NvlinkReading& link : gpu.nvlinks) {
      spoil(link.active, {false});
      spoil(link.speed_mbs, {0, -1, 1});
      spoil(link.crc_errors, {~0ull, 5000u});
    }
    if (loses()) gpu.processes.reset();
    if (loses()) gpu.stalled = {"nvmlDeviceGetName"};
    if (loses()) gpu.failed = {pick<std::string>({"nvmlDeviceGetName: GPU is lost", "x", ": "})};
    return gpu;
  }

  bool loses() { return random_() % 8 == 0; }

  template <class T>
  T pick(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }

 private:
  template <class T>
  void spoil(Known<T>& value, const std::vector<T>& others) {
    if (!loses()) return;
    if (random_() % 2 == 0)
      value.reset();
    else
      value = pick(others);
  }

  std::mt19937 random_;
};

bool finite(const Known<double>& value) { return value && std::isfinite(*value); }

/// What a rule must have read to pass.
using Needs = std::function<bool(const GpuReading&)>;
const std::map<std::string, Needs>& needs() {
  static const std::map<std::string, Needs> all{
      {"management-stall", [](auto& g) { return g.stalled.empty(); }},
      {"management-error", [](auto& g) { return g.stalled.empty() && g.failed.empty(); }},
      {"sane-readings",
       [](auto& g) {
         return finite(g.power_w) && finite(g.temperature_c) && finite(g.sm_clock_mhz) &&
                g.memory_total_bytes;
       }},
      {"gpu-model", [](auto& g) { return g.model != ""; }},
      {"gpu-identity",
       [](auto& g) {
         return g.model != "" && g.uuid != "" && g.serial != "" && g.vbios != "" && g.pci_id != "";
       }},
      {"gpu-unique", [](auto& g) { return g.uuid != ""; }},
      {"vbios", [](auto& g) { return g.vbios != ""; }},
      {"gpu-memory-size", [](auto& g) { return g.memory_total_bytes.has_value(); }},
      {"recovery-action", [](auto& g) { return g.recovery_action == "none"; }},
      {"ecc-volatile", [](auto& g) { return g.volatile_.uncorrected == 0u; }},
      {"ecc-corrected", [](auto& g) { return g.volatile_.corrected.has_value(); }},
      {"ecc-aggregate",
       [](auto& g) {
         return g.aggregate_sram_uncorrected <= 4u && g.sram_threshold_exceeded == false &&
                g.aggregate_sram_uncorrected.has_value();
       }},
      {"row-remap", [](auto& g) { return g.remap_pending == false && g.remap_failure == false; }},
      {"throttle-reasons", [](auto& g) { return g.throttle_reasons.has_value(); }},
      {"clocks",
       [](auto& g) { return g.max_sm_clock_mhz && g.max_memory_clock_mhz && g.throttle_reasons; }},
      {"power-limit", [](auto& g) { return g.power_limit_w && g.power_limit_default_w; }},
      {"temperature", [](auto& g) { return g.temperature_c.has_value(); }},
      {"persistence", [](auto& g) { return g.persistence == true; }},
      {"ecc-mode", [](auto& g) { return g.ecc_enabled == true; }},
      {"mig", [](auto& g) { return g.mig_enabled == false; }},
      {"compute-mode", [](auto& g) { return g.compute_mode == "default"; }},
      {"foreign-use", [](auto& g) { return g.processes && g.memory_used_bytes; }},
      {"nvlink-count",
       [](auto& g) {
         const bool known = std::ranges::all_of(g.nvlinks, [](auto& l) { return !!l.active; });
         const bool all = std::ranges::all_of(g.nvlinks, [](auto& l) { return l.active == true; });
         return known && (!g.nvlinks.empty() || g.nvlink_count == 0) &&
                (all || g.model == "NVIDIA H200" || g.fabric_state == "not_supported");
       }},
      {"nvlink-speed",
       [](auto& g) {
         return g.nvlink_count == 0 ||
                (!g.nvlinks.empty() && std::ranges::all_of(g.nvlinks, [](auto& l) {
                  return l.active != true || l.speed_mbs;
                }));
       }},
      {"nvlink-errors",
       [](auto& g) {
         return g.nvlink_count == 0 ||
                (!g.nvlinks.empty() && std::ranges::all_of(g.nvlinks, [](auto& l) {
                  return l.crc_errors && l.replay_errors && l.recovery_errors;
                }));
       }},
      {"nvlink-fabric",
       [](auto& g) {
         return (g.fabric_state == "completed" && g.fabric_status == "success") ||
                g.fabric_state == "not_supported";
       }},
      {"pcie-link", [](auto& g) { return g.max_pcie_generation && g.max_pcie_width; }},
      {"pcie-replays", [](auto& g) { return g.pcie_replays.has_value(); }}};
  return all;
}

Json some_facts(Spoiler& spoil) {
  Json facts{{"os", "Linux"},
             {"kernel", "6.1"},
             {"processor", "CPU"},
             {"sockets", 2},
             {"numa_nodes", 2},
             {"memory_gib", 2015},
             {"cores_online", 16},
             {"cores_allowed", {{"cores", 5}, {"list", "0-4"}}},
             {"cpu_quota", 2},
             {"memory", {{"total_bytes", 1e12}, {"available_bytes", 9e11}}},
             {"swap", {{"total_bytes", 0}, {"used_bytes", 0}}},
             {"memlock", "unlimited"},
             {"stack", 8388608},
             {"open_files", 65536},
             {"governor", "performance"},
             {"clocksource", "tsc"},
             {"numa_balancing", false},
             {"blocked_processes", Json::array()},
             {"container", "none seen"},
             {"gpus_on_bus", {"0000:18:00.0"}},
             {"driver_module", "580.2"},
             {"fabric_manager", "580.2"},
             {"modules", {"nvidia_peermem"}},
             {"iommu", {"identity"}},
             {"acs", {{"bridges", 1}, {"redirecting", 0}}},
             {"infiniband", {{{"port", "mlx5_0:1"}, {"state", "ACTIVE"}}}},
             {"nics", {{{"nic", "eth0"}, {"state", "up"}, {"speed_mbits", 100000}}}},
             {"ports", {{"range", 28232}, {"in_use", 8}}},
             {"libraries", {{"nccl", "2.27.3"}, {"nccl_built", "2.27.3"}}},
             {"cuda_variables", Json::object()},
             {"nccl_variables", {{"NCCL_DEBUG", "INFO"}}},
             {"slurm", Json::object()},
             {"revision", "1"},
             {kKernelLogFact, to_json(KernelLog{})}};
  for (const char* space : {"shm", "tmp", "current_folder"})
    facts[space] = {
        {"total_bytes", 1e12}, {"free_bytes", 1e12}, {"inodes", 1e6}, {"free_inodes", 1e6}};
  for (const std::string& name : [&] {
         std::vector<std::string> names;
         for (const auto& [key, value] : facts.items()) names.push_back(key);
         return names;
       }())
    if (spoil.loses()) facts.erase(name);
  return facts;
}

}  // namespace

TEST_CASE("no rule passes on a reading that lacks what it needs", "[node][rules][closed]") {
  for (const GpuRule& rule : gpu_rules()) CHECK(needs().contains(rule.name));
  std::set<std::string> passed, not_passed;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Spoiler spoil(seed);
    std::vector<GpuReading> gpus;
    for (int i = 0; i < 1 + static_cast<int>(seed % 5); ++i) gpus.push_back(spoil.reading(i));
    GpuContext context;
    for (const GpuReading& gpu : gpus) context.all.push_back(&gpu);
    context.peers = context.all;
    context.under_load = seed % 3 == 0;
    for (const GpuReading& gpu : gpus)
      for (const Finding& finding : judge_gpu("n0", gpu, context)) {
        const bool passes = finding.outcome == Outcome::pass;
        (passes ? passed : not_passed).insert(finding.check);
        if (!passes || needs().at(finding.check)(gpu)) continue;
        FAIL_CHECK("seed " << seed << ": " << finding.check
                           << " passes: " << finding.verdict.cause);
      }
  }
  // Both happen for each rule, or the test would say nothing.
  CHECK(passed.size() == needs().size());
  CHECK(not_passed.size() == needs().size());
}

TEST_CASE("each measurement that is missing makes unknown what needs it, and nothing else",
          "[node][rules][closed]") {
  const Json whole = to_json(healthy_h200());
  std::vector<std::pair<std::string, Json>> parts;
  for (const auto& [key, value] : whole.items()) {
    parts.emplace_back(key, whole).second.erase(key);
  }
  for (const auto& [key, value] : whole["nvlinks"][0].items())
    if (key != "link") parts.emplace_back("nvlinks." + key, whole).second["nvlinks"][0].erase(key);
  std::set<std::string> turned;
  for (const auto& [missing, part] : parts) {
    std::vector<GpuReading> gpus{gpu_reading_of(part)};
    for (int i = 1; i < 8; ++i) gpus.push_back(healthy_h200(i));
    GpuContext context;
    for (const GpuReading& gpu : gpus) context.peers.push_back(&gpu);
    context.all = context.node = context.peers;
    for (const Finding& finding : judge_gpu("n0", gpus[0], context)) {
      CAPTURE(missing, finding.check, finding.verdict.cause);
      const bool known = needs().at(finding.check)(gpus[0]);
      CHECK(finding.outcome == (known ? Outcome::pass : Outcome::unknown));
      if (!known) turned.insert(finding.check);
    }
  }
  // A reading without calls that stalled or failed is one in which none did.
  CHECK(turned.size() == needs().size() - 2);
  CHECK_FALSE((turned.contains("management-stall") || turned.contains("management-error")));
}

TEST_CASE("nodes at random are judged, compared, printed, recorded", "[node][rules][closed]") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    Spoiler spoil(seed);
    std::vector<NodeReport> reports(1 + seed % 5);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      reports[i].host = "n" + std::to_string(i);
      reports[i].facts = some_facts(spoil);
      for (int gpu = 0; gpu < 2; ++gpu) reports[i].gpus.gpus.push_back(spoil.reading(gpu));
      if (spoil.loses()) reports[i].gpus = {};
    }
    const auto findings = judge_nodes(reports, {2});
    for (const Finding& finding : findings) {
      CHECK_FALSE(finding.verdict.cause.empty());
      CHECK_FALSE(record_of(finding).empty());
      // A fault, and what may be one, comes with its class and what to do.
      if (finding.outcome == Outcome::fail || finding.outcome == Outcome::warn)
        CHECK((!finding.verdict.action.empty() && finding.verdict.class_));
    }
    CHECK_FALSE(findings_table(findings).empty());
    const std::size_t loads = judge_load(reports, reports, {2}).size();
    CHECK(loads >= reports.front().gpus.gpus.size());
    for (const HostRule& rule : host_rules()) {
      const auto judgements = rule.judge(reports.front().facts);
      CHECK_FALSE(judgements.empty());
    }
  }
}

}  // namespace shakedown::node
