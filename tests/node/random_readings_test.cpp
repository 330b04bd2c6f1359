// Readings at random: with anything missing or impossible no rule passes what it has not seen.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "launch/node/health/rules/finding.hpp"
#include "launch/node/health/rules/rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

/// Makes a healthy reading sick: each field is kept, lost, or another value.
class Spoiler {
 public:
  explicit Spoiler(unsigned seed) : random_(seed) {}

  GpuReading reading(int index) {
    Json gpu = healthy_h200(index);
    for (Json& link : gpu["nvlinks"]) spoil(link, "link");
    spoil(gpu, "index");
    if (loses()) gpu["stalled"] = {"nvmlDeviceGetName"};
    if (loses()) gpu["failed"] = {pick<Json>({"nvmlDeviceGetName: GPU is lost", "x", ": "})};
    return read_as<GpuReading>(gpu);
  }

  /// Loses some keys of a host's.
  Json facts() {
    const Json healthy = fixture("healthy_facts.json");
    Json some = Json::object();
    for (const auto& [key, value] : healthy.items())
      if (!loses()) some[key] = value;
    return some;
  }

  bool loses() { return random_() % 8 == 0; }

 private:
  template <class T>
  T pick(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }

  void spoil(Json& object, const std::string& kept) {
    Json spoilt = Json::object();
    for (const auto& [key, value] : object.items())
      if (key == kept || !loses())
        spoilt[key] = value;
      else if (random_() % 2 == 0)
        spoilt[key] = another(value);
    object = spoilt;
  }

  Json another(const Json& value) {
    if (value.is_boolean()) return pick<Json>({true, false});
    if (value.is_string())
      return pick<Json>({"", " ", "unknown", std::string(300, 'x'), "\xff", "none", "completed",
                         "success", "17", "default"});
    if (value.is_number_float())
      return pick<Json>({NAN, INFINITY, -INFINITY, -1.0, 0.0, 4294967295.0, 1e300});
    if (value.is_number_unsigned()) return pick<Json>({0u, 1u, 0xffffffffu, ~0ull, 1ull << 40});
    if (value.is_number()) return pick<Json>({-1, 0, 1, 16, std::numeric_limits<int>::max()});
    return value.empty() ? value : Json(std::vector<Json>(value.begin() + 1, value.end()));
  }

  std::mt19937 random_;
};

/// What a rule must have read to pass: keys, "KEY#" a finite number, "KEY=VALUE" this, "!KEY" none.
const std::map<std::string, std::string> kNeeds{
    {"management-stall", "!stalled"},
    {"management-error", "!stalled !failed"},
    {"sane-readings", "power_w# temperature_c# sm_clock_mhz# memory_total_bytes"},
    {"gpu-model", "model"},
    {"gpu-identity", "model uuid serial vbios pci_id"},
    {"gpu-unique", "uuid"},
    {"vbios", "vbios"},
    {"gpu-memory-size", "memory_total_bytes"},
    {"recovery-action", "recovery_action=\"none\""},
    {"ecc-volatile", "volatile_uncorrected=0"},
    {"ecc-corrected", "volatile_corrected"},
    {"ecc-aggregate", "aggregate_sram_uncorrected sram_threshold_exceeded=false"},
    {"row-remap", "remap_pending=false remap_failure=false"},
    {"throttle-reasons", "throttle_reasons"},
    {"clocks", "max_sm_clock_mhz max_memory_clock_mhz throttle_reasons"},
    {"power-limit", "power_limit_w power_limit_default_w"},
    {"temperature", "temperature_c"},
    {"persistence", "persistence=true"},
    {"ecc-mode", "ecc_enabled=true"},
    {"mig", "mig_enabled=false"},
    {"compute-mode", "compute_mode=\"default\""},
    {"foreign-use", "processes memory_used_bytes"},
    {"nvlink-count", ""},
    {"nvlink-speed", ""},
    {"nvlink-errors", ""},
    {"nvlink-fabric", "fabric_state"},
    {"nvlink-clique", "fabric_state fabric_cluster"},
    {"c2c", "model"},
    {"pcie-link", "max_pcie_generation max_pcie_width"},
    {"pcie-replays", "pcie_replays"}};

/// Of all its links, where it may have some.
template <class Known>
bool all_links(const GpuReading& gpu, Known&& known) {
  return gpu.nvlink_count == 0 || (!gpu.nvlinks.empty() && std::ranges::all_of(gpu.nvlinks, known));
}

bool may_pass(const std::string& check, const GpuReading& gpu) {
  using Link = const NvlinkReading&;
  if (check == "nvlink-count")
    return all_links(gpu, [](Link l) { return l.active.has_value(); }) &&
           (gpu.model == "NVIDIA H200" || gpu.fabric_state == "not_supported" ||
            all_links(gpu, [](Link l) { return l.active == true; }));
  if (check == "nvlink-speed")
    return all_links(gpu, [](Link l) { return l.active != true || l.speed_mbs; });
  if (check == "nvlink-errors")
    return all_links(gpu,
                     [](Link l) { return l.crc_errors && l.replay_errors && l.recovery_errors; });
  if (check == "nvlink-clique" && gpu.fabric_state == "not_supported") return true;
  if (check == "nvlink-fabric" && gpu.fabric_state != "not_supported")
    return gpu.fabric_state == "completed" && gpu.fabric_status == "success";
  const Json reading = gpu;
  std::istringstream needs(kNeeds.at(check));
  for (std::string need; needs >> need;) {
    const std::string key =
        need.substr(need[0] == '!', need.find_first_of("#=") - (need[0] == '!'));
    const Json value = reading.value(key, Json());
    if (value.is_null() != (need[0] == '!')) return false;
    if (need.back() == '#' && !std::isfinite(value.get<double>())) return false;
    if (const auto equals = need.find('='); equals != need.npos)
      if (value != Json::parse(need.substr(equals + 1))) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("no rule passes on a reading that lacks what it needs", "[node][rules][closed]") {
  for (const GpuRule& rule : gpu_rules()) CHECK(kNeeds.contains(rule.name));
  std::set<std::string> passed, not_passed;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Spoiler spoil(seed);
    std::vector<GpuReading> gpus;
    for (int i = 0; i < 1 + static_cast<int>(seed % 5); ++i) gpus.push_back(spoil.reading(i));
    GpuContext context = context_of(gpus);
    context.under_load = seed % 3 == 0;
    for (const GpuReading& gpu : gpus)
      for (const Finding& finding : judge_gpu("n0", gpu, context)) {
        const bool passes = finding.outcome == Outcome::pass;
        (passes ? passed : not_passed).insert(finding.check);
        if (!passes || may_pass(finding.check, gpu)) continue;
        FAIL_CHECK("seed " << seed << ": " << finding.check
                           << " passes: " << finding.verdict.cause);
      }
  }
  // Both happen for each rule, or the test would say nothing.
  CHECK(passed.size() == kNeeds.size());
  CHECK(not_passed.size() == kNeeds.size());
}

TEST_CASE("each measurement that is missing makes unknown what needs it, and nothing else",
          "[node][rules][closed]") {
  const Json whole = healthy_h200();
  std::map<std::string, Json> parts;
  for (const auto& [key, value] : whole.items()) (parts[key] = whole).erase(key);
  for (const auto& [key, value] : whole["nvlinks"][0].items())
    if (key != "link") (parts["nvlinks." + key] = whole)["nvlinks"][0].erase(key);
  std::set<std::string> turned;
  for (const auto& [missing, part] : parts) {
    std::vector<GpuReading> gpus{read_as<GpuReading>(part)};
    for (int i = 1; i < 8; ++i) gpus.push_back(healthy_h200(i));
    for (const Finding& finding : judge_gpu("n0", gpus[0], context_of(gpus))) {
      CAPTURE(missing, finding.check, finding.verdict.cause);
      const bool known = may_pass(finding.check, gpus[0]);
      CHECK(finding.outcome == (known ? Outcome::pass : Outcome::unknown));
      if (!known) turned.insert(finding.check);
    }
  }
  // A reading without calls that stalled or failed is one in which none did.
  CHECK(turned.size() == kNeeds.size() - 2);
  CHECK_FALSE((turned.contains("management-stall") || turned.contains("management-error")));
}

TEST_CASE("nodes at random are judged, compared, printed, recorded", "[node][rules][closed]") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    Spoiler spoil(seed);
    std::vector<NodeReport> reports(1 + seed % 5);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      reports[i].host = "n" + std::to_string(i);
      reports[i].facts = spoil.facts();
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
    CHECK(judge_load(reports, reports, {2}).size() >= reports.front().gpus.gpus.size());
    for (const HostRule& rule : host_rules())
      CHECK_FALSE(rule.judge(reports.front().facts).empty());
  }
}

}  // namespace shakedown::node
