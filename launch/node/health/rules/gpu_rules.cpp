#include "launch/node/health/rules/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>

#include "common/nvml.hpp"
#include "common/nvml_library.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"

namespace shakedown::node {

std::vector<Finding> judge_gpu(const std::string& host, const GpuReading& gpu,
                               const GpuContext& context) {
  std::vector<Finding> findings;
  for (const GpuRule& rule : gpu_rules()) {
    Judgement judgement = rule.judge(gpu, context);
    if (!gpu.stalled.empty() && judgement.outcome == Outcome::unknown)
      judgement = not_known("not read: an earlier call of the driver did not return");
    findings.push_back(finding_of_gpu(rule.name, judgement, host, gpu));
  }
  return findings;
}

Finding finding_of_gpu(const std::string& check, const Judgement& judgement,
                       const std::string& host, const GpuReading& gpu) {
  const std::string subject = fmt::format("GPU {}", gpu.index);
  const std::string name = gpu.uuid.empty() ? fmt::format("{} {}", host, subject) : gpu.uuid;
  return finding_of(check, judgement, Scope::gpu, name, host, subject);
}

namespace {

/// "nvidia-smi -i 00000000:18:00.0": commands address a GPU by its PCI id, as its index differs
/// between programs.
std::string nvidia_smi(const GpuReading& gpu) {
  return fmt::format("nvidia-smi -i {}",
                     gpu.pci_id.empty() ? std::to_string(gpu.index) : gpu.pci_id);
}

// The forms that several rules have.

/// A switch that should be `right`, which `set` and an option of nvidia-smi make it. Another
/// position is a warning; a failure where most peers have the right one, and that `matters`.
struct Switch {
  Known<bool> GpuReading::*field;
  bool right;
  const char* what;
  const char *set, *option;
  bool matters;

  Judgement operator()(const GpuReading& gpu, const GpuContext& context) const {
    const Known<bool>& value = gpu.*field;
    if (!value) return not_known(fmt::format("{} is not reported", what));
    const std::string cause = fmt::format("{} is {}", what, *value ? "on" : "off");
    if (*value == right) return passed(cause);
    const bool unlike = context.majority(field) == right;
    const auto judge = unlike && matters ? failure : warning;
    return judge(Class::config, cause + (unlike ? ", unlike that of most peers" : ""),
                 fmt::format("reconfigure: {}{} {}", set, nvidia_smi(gpu), option));
  }
};

/// A text that should be that of most others; in the words {0} is this GPU's, {1} that of most.
struct AsMost {
  std::string GpuReading::*field;
  std::vector<const GpuReading*> GpuContext::*others;  // itself too
  const char *what, *alike;
  const char *several, *choose;  // where none is that of most
  const char *unlike, *become;

  Judgement operator()(const GpuReading& gpu, const GpuContext& context) const {
    const std::string& mine = gpu.*field;
    if (mine.empty()) return not_known(fmt::format("{} is not reported", what));
    std::vector<std::string> known;
    for (const GpuReading* other : context.*others)
      if (!(other->*field).empty()) known.push_back(other->*field);
    const auto most = majority_of(known);
    const auto text = [&](const char* words) {
      return fmt::format(fmt::runtime(words), mine, most.value_or(""));
    };
    if (std::ranges::count(known, mine) == std::ssize(known) || most == mine)
      return passed(text(alike));
    return warning(Class::config, text(most ? unlike : several), text(most ? become : choose));
  }
};

}  // namespace

Judgement FewErrors::operator()(const GpuReading& gpu, const GpuContext& context) const {
  if (!count(gpu)) return not_known(fmt::format("{} are not reported", what));
  const auto mine = static_cast<double>(*count(gpu));
  std::vector<double> peers;
  for (const GpuReading* peer : context.peers)
    if (const auto known = count(*peer)) peers.push_back(static_cast<double>(*known));
  const double usual = peers.size() < 3 ? 0 : median_of(peers);
  const double limit = peers.size() < 3 ? alone : std::max(kManyErrors, kManyTimesPeers * usual);
  if (mine <= limit) return passed(fmt::format("{} are few", what));
  return warning(Class::hardware, fmt::format(fmt::runtime(many), mine, what, limit, usual),
                 action);
}

// Whether the driver answers for a GPU, and whether what it says can be.

Judgement judge_slow_opening(const std::string& cause) {
  return undecided(Class::config,
                   cause +
                       ": the driver hangs, or initializes the GPUs, which takes seconds per GPU "
                       "where persistence mode is off",
                   "enable persistence mode (nvidia-persistenced) and run again; reboot if it "
                   "comes back");
}

namespace {

constexpr const char* kReboot = "reboot; RMA if it comes back";
constexpr const char* kReset = "reset GPU; reboot; RMA if it comes back";

Judgement judge_stalls(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.stalled.empty()) return passed("every call returned within its deadline");
  const auto calls = fmt::format("{} did not return", fmt::join(gpu.stalled, ", "));
  if (!context.initialized && gpu.stalled.front() == nvml::kHandleByIndex)
    return judge_slow_opening(calls);
  return failure(Class::hardware, "the management path hangs: " + calls,
                 "drain the node; reset GPU, reboot if that hangs too");
}

/// NVML's words for an error of the GPU itself.
struct GpuError {
  const char* words;
  const char* action;
};
constexpr std::array<GpuError, 8> kGpuErrors{{{"External Power", "inspect the GPU's power cables"},
                                              {"lost", kReboot},
                                              {"fallen off", kReboot},
                                              {"requires reset", kReset},
                                              {"Interrupt Request Issue", kReset},
                                              {"infoROM", "reset GPU; RMA if it stays"},
                                              {"ECC error", kReset},
                                              {"Unknown Error", kReset}}};

/// "nvmlDeviceGetName" of "nvmlDeviceGetName: Timeout".
std::string function_of(const std::string& call) { return call.substr(0, call.find(": ")); }

/// Whether the driver answers this call for another GPU of the node, of the same model where this
/// one's is known; with MIG fewer calls are answered.
bool peer_answers(const GpuReading& gpu, const GpuContext& context, const std::string& function) {
  return std::ranges::any_of(context.node, [&](const GpuReading* peer) {
    const bool is_peer = peer->index != gpu.index && !peer->uuid.empty() && peer->stalled.empty() &&
                         (gpu.model.empty() || peer->model == gpu.model) &&
                         (gpu.mig_enabled != true || peer->mig_enabled == true);
    return is_peer && std::ranges::none_of(peer->failed, [&](const std::string& call) {
             return function_of(call) == function;
           });
  });
}

/// What is not supported was not noted. What the caller may not do, or asks wrongly, says nothing
/// of the GPU; every other error does, or nobody knows that it does not.
Judgement judge_failed_call(const std::string& call, const GpuReading& gpu,
                            const GpuContext& context) {
  const std::string function = function_of(call), words = call.substr(function.size());
  const auto has = [&](const char* text) { return words.find(text) != std::string::npos; };
  for (const GpuError& error : kGpuErrors)
    if (has(error.words)) return failure(Class::hardware, call, error.action);
  if (has("ermission")) return not_known(call, "run as root");
  if (has("upported")) return not_known(call);
  if (peer_answers(gpu, context, function))
    return failure(Class::hardware, call + ", which other GPUs of the node answer", kReset);
  if (has("Invalid Argument")) return not_known(call);
  return undecided(Class::software, call, "reload the driver; reboot");
}

Judgement judge_failures(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.failed.empty() && !gpu.stalled.empty()) return not_known("not all calls were made");
  if (gpu.failed.empty()) return passed("no call failed");
  std::vector<Judgement> all;
  for (const std::string& call : gpu.failed) all.push_back(judge_failed_call(call, gpu, context));
  return worst(all);
}

struct Range {
  const char* what;
  Known<double> GpuReading::*field;
  double low, high;
  const char* unit;
};
// Beyond what any GPU can have. A GPU that is gone answers 0 or 2^32-1 without an error.
constexpr std::array<Range, 11> kRanges{{
    {"power", &GpuReading::power_w, 1, 3000, "W"},
    {"power limit", &GpuReading::power_limit_w, 1, 3000, "W"},
    {"default power limit", &GpuReading::power_limit_default_w, 1, 3000, "W"},
    {"temperature", &GpuReading::temperature_c, 1, 130, "C"},
    {"memory temperature", &GpuReading::memory_temperature_c, 1, 130, "C"},
    {"SM clock", &GpuReading::sm_clock_mhz, 1, 10000, "MHz"},
    {"memory clock", &GpuReading::memory_clock_mhz, 1, 50000, "MHz"},
    {"highest SM clock", &GpuReading::max_sm_clock_mhz, 1, 10000, "MHz"},
    {"highest memory clock", &GpuReading::max_memory_clock_mhz, 1, 50000, "MHz"},
    {"utilisation", &GpuReading::utilisation_percent, 0, 100, "%"},
    {"memory utilisation", &GpuReading::memory_utilisation_percent, 0, 100, "%"},
}};

/// "all bits set", which no counter reaches.
bool impossible(const Known<std::uint64_t>& count) {
  return count && (*count == std::numeric_limits<std::uint64_t>::max() ||
                   *count == std::numeric_limits<std::uint32_t>::max());
}

Judgement judge_sanity(const GpuReading& gpu, const GpuContext&) {
  std::vector<std::string> wrong;
  for (const Range& range : kRanges) {
    const Known<double>& value = gpu.*range.field;
    if (value && !(*value >= range.low && *value <= range.high))
      wrong.push_back(fmt::format("{} {:.0f} {}", range.what, *value, range.unit));
  }
  if (gpu.memory_total_bytes == 0u) wrong.emplace_back("0 bytes of memory");
  if (gpu.memory_total_bytes && gpu.memory_used_bytes > *gpu.memory_total_bytes)
    wrong.emplace_back("more memory in use than there is");
  const std::pair<const char*, Known<std::uint64_t>> counters[] = {
      {"volatile uncorrected ECC errors", gpu.volatile_.uncorrected},
      {"aggregate uncorrected ECC errors", gpu.aggregate.uncorrected},
      {"PCIe replays", gpu.pcie_replays}};
  for (const auto& [what, count] : counters)
    if (impossible(count)) wrong.push_back(fmt::format("{} {}", *count, what));
  if (!wrong.empty())
    return failure(Class::hardware, fmt::format("impossible: {}", fmt::join(wrong, ", ")), kReset);
  if (!gpu.power_w || !gpu.temperature_c || !gpu.sm_clock_mhz || !gpu.memory_total_bytes)
    return not_known("power, temperature, clock or memory is not reported");
  return passed("readings are possible values");
}

// Which GPU it is, and whether its peers are the same.

Judgement judge_identity(const GpuReading& gpu, const GpuContext&) {
  const std::pair<const char*, const std::string&> parts[] = {{"model", gpu.model},
                                                              {"UUID", gpu.uuid},
                                                              {"PCI id", gpu.pci_id},
                                                              {"serial", gpu.serial},
                                                              {"VBIOS", gpu.vbios}};
  std::vector<const char*> missing;
  for (const auto& [what, text] : parts)
    if (text.empty()) missing.push_back(what);
  if (!missing.empty()) return not_known(fmt::format("not reported: {}", fmt::join(missing, ", ")));
  return passed("model, UUID, PCI id, serial and VBIOS are known");
}

/// Two nodes that report one GPU: a cloned image, or one node counted twice.
Judgement judge_unique(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.uuid.empty()) return not_known("UUID is not reported");
  const auto same = std::ranges::count_if(
      context.peers, [&](const GpuReading* peer) { return peer->uuid == gpu.uuid; });
  if (same <= 1) return passed("no other GPU has its UUID");
  return failure(Class::infrastructure, fmt::format("{} GPUs of this job have its UUID", same),
                 "inspect the host names: one node may be in the job twice");
}

Judgement judge_memory_size(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.memory_total_bytes) return not_known("memory size is not reported");
  const double size = static_cast<double>(*gpu.memory_total_bytes);
  const auto most = context.majority(&GpuReading::memory_total_bytes);
  if (most && size < 0.99 * static_cast<double>(*most))
    return failure(Class::hardware,
                   fmt::format("{:.0f} MiB of memory, {:.0f} MiB on most of this model",
                               size / 0x1p20, static_cast<double>(*most) / 0x1p20),
                   "reset GPU; RMA if it comes back");
  return passed(fmt::format("{:.0f} GiB of memory", size / 0x1p30));
}

// ECC errors, remapped rows, and what the driver itself advises.

constexpr const char* kRma = "RMA";
// Above this a GPU is usually replaced: ml-engineering's RMA line.
constexpr std::uint64_t kAggregateSramErrors = 4;
constexpr double kCorrectedAlone = 2e7;  // where there are no peers: AzNHC's limit

struct Recovery {
  const char* name;  // as the reading has it
  const char* action;
};
constexpr std::array<Recovery, 5> kRecoveries{
    {{"reset", "reset GPU"},
     {"recover_imex_domain", "restart nvidia-imex on all nodes of the domain"},
     {"reboot", "reboot"},
     {"drain_p2p", "drain the node and stop peer-to-peer work on it, then reset GPU"},
     {"drain_and_reset", "drain the node, then reset GPU"}}};

Judgement judge_recovery(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.recovery_action) return not_known("the driver does not report a recovery action");
  return judge_recovery_action(*gpu.recovery_action);
}

Judgement judge_volatile(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.volatile_.uncorrected) return not_known("uncorrected ECC errors are not reported");
  if (*gpu.volatile_.uncorrected == 0)
    return passed("no uncorrected ECC error since the driver was loaded");
  const std::string cause = fmt::format("{} uncorrected ECC errors since the driver was loaded",
                                        *gpu.volatile_.uncorrected);
  // One that was recovered is history (gpud#108); those that grow are judged after the work.
  if (gpu.remap_pending == false && gpu.remap_failure == false && gpu.recovery_action == "none")
    return warning(Class::hardware, cause + ", recovered", "run again; RMA if they grow");
  return failure(Class::hardware, cause, "reset GPU; RMA if they come back");
}

Judgement judge_aggregate(const GpuReading& gpu, const GpuContext&) {
  if (gpu.sram_threshold_exceeded == true)
    return failure(Class::hardware, "uncorrected SRAM errors exceed the driver's threshold", kRma);
  if (!gpu.aggregate_sram_uncorrected)
    return not_known("lifetime uncorrected SRAM errors are not reported");
  const std::string cause =
      fmt::format("{} uncorrected SRAM errors in its life", *gpu.aggregate_sram_uncorrected);
  if (*gpu.aggregate_sram_uncorrected > kAggregateSramErrors)
    return warning(Class::hardware, cause, "RMA candidate: more than 4 is the usual line");
  if (!gpu.sram_threshold_exceeded)
    return not_known(cause + "; whether the driver's threshold is exceeded is not reported");
  return passed("uncorrected SRAM errors: at most 4, below the driver's threshold");
}

Judgement judge_remap(const GpuReading& gpu, const GpuContext&) {
  if (gpu.remap_failure == true)
    return failure(Class::hardware, "a row of memory could not be remapped", kRma);
  if (gpu.remap_pending == true)
    return failure(Class::hardware, "remapped rows of memory wait for a reset", "reset GPU");
  if (!gpu.remap_failure || !gpu.remap_pending) return not_known("remapped rows are not reported");
  const int rows = gpu.remapped_corrected.value_or(0) + gpu.remapped_uncorrected.value_or(0);
  return passed(rows == 0 ? "no row of memory is remapped"
                          : fmt::format("{} rows of memory are remapped, none pending", rows));
}

// Clocks, power, temperature, and why the clocks are low, at one moment.

constexpr double kBusy_percent = 10;  // above it a power cap is normal
constexpr double kHot_c = 85;         // where the driver reports no margin
constexpr double kHotMemory_c = 95;
constexpr double kSmallMargin_c = 5;  // to the slowdown
constexpr double kSameLimit_w = 1;
constexpr const char* kCooling = "inspect the cooling: fans, air flow, inlet temperature";

bool is_busy(const GpuReading& gpu, const GpuContext& context) {
  return context.under_load || gpu.utilisation_percent > kBusy_percent;
}

Judgement judge_reasons(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.throttle_reasons) return not_known("throttle reasons are not reported");
  const std::uint64_t bits = *gpu.throttle_reasons;
  const std::string cause =
      fmt::format("clocks are reduced: {}", text_of_throttle_reasons(gpu.throttle_reasons));
  if (const auto slowdown = judge_hardware_slowdown(gpu, context.under_load)) return *slowdown;
  if (bits & throttle::kHeat) return warning(Class::environment, cause, kCooling);
  if (bits & throttle::kSyncBoost)
    return warning(Class::config, cause, "reconfigure: take the GPU out of its sync boost group");
  if (bits & throttle::kPowerCap && !is_busy(gpu, context))
    return warning(Class::config, cause + ", though the GPU is idle",
                   "reconfigure the power limit: " + nvidia_smi(gpu) + " -pl DEFAULT");
  return passed("clocks are not reduced");
}

Judgement judge_clocks(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.max_sm_clock_mhz || !gpu.max_memory_clock_mhz)
    return not_known("highest clocks are not reported");
  const auto sm = context.majority(&GpuReading::max_sm_clock_mhz);
  const auto memory = context.majority(&GpuReading::max_memory_clock_mhz);
  const std::string reset = "reconfigure the clocks: " + nvidia_smi(gpu) + " -rgc -rac";
  if ((sm && gpu.max_sm_clock_mhz < *sm) || (memory && gpu.max_memory_clock_mhz < *memory))
    return failure(
        Class::config,
        fmt::format("highest clocks {:.0f} and {:.0f} MHz, lower than those of most peers",
                    *gpu.max_sm_clock_mhz, *gpu.max_memory_clock_mhz),
        reset);
  if (!gpu.throttle_reasons) return not_known("whether the clocks are locked is not reported");
  if (*gpu.throttle_reasons & throttle::kApplicationClocks)
    return warning(Class::config, "the clocks are set by an operator", reset);
  return passed(fmt::format("highest clocks {:.0f} and {:.0f} MHz, not locked",
                            *gpu.max_sm_clock_mhz, *gpu.max_memory_clock_mhz));
}

Judgement judge_power_limit(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.power_limit_w) return not_known("the power limit is not reported");
  if (!gpu.power_limit_default_w) return not_known("the default power limit is not reported");
  const double limit = *gpu.power_limit_w, usual = *gpu.power_limit_default_w;
  const std::string cause = fmt::format("power limit {:.0f} W, default {:.0f} W", limit, usual);
  const auto most = context.majority(&GpuReading::power_limit_w);
  const std::string action =
      fmt::format("reconfigure the power limit: {} -pl {:.0f}", nvidia_smi(gpu), usual);
  if (most && limit < *most - kSameLimit_w)
    return failure(Class::config, fmt::format("{}, most peers {:.0f} W", cause, *most), action);
  if (limit < usual - kSameLimit_w || limit > usual + kSameLimit_w)
    return warning(Class::config, cause, action);
  return passed(fmt::format("power limit {:.0f} W, the default", limit));
}

Judgement judge_temperature(const GpuReading& gpu, const GpuContext&) {
  if (gpu.temperature_margin_c && *gpu.temperature_margin_c <= kSmallMargin_c)
    return warning(Class::environment,
                   fmt::format("{:.0f} C {} the slowdown", std::abs(*gpu.temperature_margin_c),
                               *gpu.temperature_margin_c < 0 ? "above" : "below"),
                   kCooling);
  if (gpu.memory_temperature_c && *gpu.memory_temperature_c > kHotMemory_c)
    return warning(Class::environment, fmt::format("memory at {:.0f} C", *gpu.memory_temperature_c),
                   kCooling);
  if (!gpu.temperature_c) return not_known("temperature is not reported");
  if (!gpu.temperature_margin_c && *gpu.temperature_c > kHot_c)
    return warning(Class::environment, fmt::format("{:.0f} C", *gpu.temperature_c), kCooling);
  return passed("temperature is normal");
}

// What an operator sets on a GPU, and who else uses it.

constexpr std::uint64_t kIdleMemory_bytes = 15u << 20;  // gcm's limit

Judgement judge_compute_mode(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.compute_mode) return not_known("compute mode is not reported");
  const std::string cause = "compute mode " + *gpu.compute_mode;
  const std::string action = "reconfigure: " + nvidia_smi(gpu) + " -c 0";
  if (*gpu.compute_mode == "default") return passed(cause);
  if (*gpu.compute_mode == "prohibited")
    return failure(Class::config, cause + ": no program can use the GPU", action);
  return warning(Class::config, cause + ": one process at a time", action);
}

constexpr const char* kAnyMig = "any";
constexpr int kMostMigDevices = 64;  // of a GPU; at most 8 are made today

/// "1g.18gb:7" of seven alike: profiles and how many of each, as mig-parted has them.
std::string layout_of(const std::vector<std::string>& devices) {
  std::map<std::string, int> counts;
  for (const std::string& device : devices) ++counts[device];
  std::string text;
  for (const auto& [profile, count] : counts)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", profile, count);
  return text.empty() ? "no device" : text;
}

/// Nodes where some GPUs are divided are set up so, and the others are none the slower. Where a
/// layout is expected, each GPU should have it.
Judgement judge_mig(const GpuReading& gpu, const GpuContext& context) {
  if (context.expected_mig.empty() || !gpu.mig_enabled)
    return Switch{&GpuReading::mig_enabled,
                  false,
                  "MIG",
                  "",
                  "-mig 0, then reset GPU; nothing to do if the GPU is divided on purpose "
                  "(--expect-mig)",
                  false}(gpu, context);
  const std::string expected = "--expect-mig " + context.expected_mig;
  if (!*gpu.mig_enabled)
    return failure(Class::config, "MIG is off, " + expected,
                   fmt::format("reconfigure: {} -mig 1, then make its devices", nvidia_smi(gpu)));
  if (!gpu.mig_devices) return not_known("MIG is on; its devices are not reported");
  const std::string layout = layout_of(*gpu.mig_devices);
  const bool any = context.expected_mig == kAnyMig && !gpu.mig_devices->empty();
  if (any || layout == context.expected_mig) return passed("MIG " + layout);
  return failure(Class::config, fmt::format("MIG {}, {}", layout, expected),
                 fmt::format("reconfigure: nvidia-mig-parted, or {} mig -dci, -dgi, -cgi ... -C",
                             nvidia_smi(gpu)));
}

}  // namespace

std::string mig_layout(const std::string& text) {
  if (text.empty() || text == kAnyMig) return text;
  std::vector<std::string> devices;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto colon = part.find(':');
    char more = 0;
    int count = 0;
    if (colon == 0 || colon == part.npos ||
        std::sscanf(part.c_str() + colon + 1, "%d%c", &count, &more) != 1 || count < 1 ||
        count > kMostMigDevices)
      throw UsageError(
          fmt::format("--expect-mig {}: must be '{}' or PROFILE:NUMBER,..., as "
                      "1g.18gb:7",
                      text, kAnyMig));
    devices.insert(devices.end(), static_cast<std::size_t>(count), part.substr(0, colon));
  }
  return layout_of(devices);
}

Judgement judge_recovery_action(const std::string& name) {
  if (name == "none") return passed("the driver advises no recovery");
  const std::string cause = fmt::format("the driver advises: {}", name);
  for (const Recovery& recovery : kRecoveries)
    if (name == recovery.name) return failure(Class::hardware, cause, recovery.action);
  return failure(Class::hardware, cause, "drain the node; see the documentation of this driver");
}

std::optional<Judgement> judge_hardware_slowdown(const GpuReading& gpu, bool lasts) {
  const std::uint64_t bits = gpu.throttle_reasons.value_or(0);
  const auto judge = lasts ? failure : warning;
  const std::string cause =
      fmt::format("clocks are reduced: {}", text_of_throttle_reasons(gpu.throttle_reasons));
  if (bits & throttle::kPowerBrake)
    return judge(Class::environment, cause, "inspect the power supplies of the node");
  if (bits & throttle::kHwSlowdown && !(bits & throttle::kHwThermal))
    return judge(Class::hardware, cause, "inspect power and cooling; reset GPU, RMA if it stays");
  return std::nullopt;
}

std::vector<int> foreign_pids(const GpuReading& gpu, const std::vector<int>& our_pids) {
  std::vector<int> foreign;
  for (const ProcessReading& process : gpu.processes.value_or(std::vector<ProcessReading>{}))
    if (std::ranges::find(our_pids, process.pid) == our_pids.end()) foreign.push_back(process.pid);
  return foreign;
}

Judgement judge_foreign_use(const GpuReading& gpu, const GpuContext& context) {
  const std::vector<int> foreign = foreign_pids(gpu, context.our_pids);
  const bool ours = gpu.processes && gpu.processes->size() > foreign.size();
  // Memory that is the system's too (Grace: a NUMA node of its own) has pages of files and of
  // processes without a context.
  const bool shared = gpu.memory_numa_node && gpu.memory_numa_node != gpu.numa_node;
  const bool used = gpu.memory_used_bytes > kIdleMemory_bytes && !ours && !shared;
  if (!foreign.empty())
    return warning(Class::environment,
                   fmt::format("in use by other processes: pid {}", fmt::join(foreign, ", ")),
                   "end them, or run again when the GPU is free");
  if (used)
    return warning(
        Class::environment,
        fmt::format("{:.0f} MiB of memory in use, though no process of this job uses it",
                    static_cast<double>(*gpu.memory_used_bytes) / 0x1p20),
        "end the processes left over (fuser -v /dev/nvidia*), reset GPU if there are none");
  if (!gpu.processes) return not_known("processes are not reported");
  if (!gpu.memory_used_bytes) return not_known("memory in use is not reported");
  return passed("no other process uses it");
}

std::vector<GpuRule> gpu_rules() {
  std::vector<GpuRule> all{
      {"management-stall", "calls of the driver that did not return", judge_stalls},
      {"management-error", "calls of the driver that failed", judge_failures},
      {"sane-readings", "values that no GPU can have", judge_sanity},
      // A node may have one card of another kind by mistake.
      {"gpu-model", "model, by the majority of the job",
       AsMost{&GpuReading::model, &GpuContext::all, "the model", "{0}",
              "{0}; the job has several models", "run on GPUs of one model", "{0}, most are {1}",
              "run on GPUs of one model"}},
      {"gpu-identity", "model, UUID, PCI id, serial, VBIOS", judge_identity},
      {"gpu-unique", "GPUs of the job that have the same UUID", judge_unique},
      {"vbios", "VBIOS, by the majority of the model",
       AsMost{&GpuReading::vbios, &GpuContext::peers, "VBIOS", "VBIOS {0}",
              "VBIOS {0}; others of this model differ",
              "reconfigure the GPUs of one model to the same VBIOS",
              "VBIOS {0}, {1} on most of this model", "reconfigure the VBIOS to {1}"}},
      {"gpu-memory-size", "size of memory, by the majority of the model", judge_memory_size},
      {"recovery-action", "what the driver advises to do", judge_recovery},
      {"ecc-volatile", "uncorrected ECC errors since the driver was loaded", judge_volatile},
      {"ecc-corrected", "corrected ECC errors, next to those of the peers",
       FewErrors{[](const GpuReading& gpu) { return gpu.volatile_.corrected; },
                 "corrected ECC errors", "{0:.0f} {1} since the driver was loaded, limit {2:.0f}",
                 "run again after a day; reset GPU if they grow", kCorrectedAlone}},
      {"ecc-aggregate", "uncorrected SRAM errors of the GPU's life", judge_aggregate},
      {"row-remap", "remapped rows: pending, failed", judge_remap},
      {"throttle-reasons", "why the clocks are reduced now", judge_reasons},
      {"clocks", "highest clocks, by the majority of the model; locked clocks", judge_clocks},
      {"power-limit", "power limit next to its default and to the peers'", judge_power_limit},
      {"temperature", "GPU and memory", judge_temperature},
      // It costs seconds at the start of a job, and nothing after.
      {"persistence", "persistence mode",
       Switch{&GpuReading::persistence, true, "persistence mode", "start nvidia-persistenced, or ",
              "-pm 1", false}},
      {"ecc-mode", "whether ECC is on",
       Switch{&GpuReading::ecc_enabled, true, "ECC", "", "-e 1, then reset GPU", true}},
      {"mig", "whether the GPU is divided by MIG, and as --expect-mig has it", judge_mig},
      {"compute-mode", "who may use the GPU", judge_compute_mode},
      {"foreign-use", "processes of others, and memory in use without any", judge_foreign_use}};
  std::ranges::move(link_rules(), std::back_inserter(all));
  return all;
}

}  // namespace shakedown::node
