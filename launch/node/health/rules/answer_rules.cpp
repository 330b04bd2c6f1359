// Whether the driver answers for a GPU, and whether what it says can be.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "common/nvml_library.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
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
/// one's is known.
bool peer_answers(const GpuReading& gpu, const GpuContext& context, const std::string& function) {
  return std::ranges::any_of(context.node, [&](const GpuReading* peer) {
    const bool is_peer = peer->index != gpu.index && !peer->uuid.empty() && peer->stalled.empty() &&
                         (gpu.model.empty() || peer->model == gpu.model);
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

}  // namespace

Judgement judge_slow_opening(const std::string& cause) {
  return undecided(Class::config,
                   cause +
                       ": the driver hangs, or initializes the GPUs, which takes seconds per GPU "
                       "where persistence mode is off",
                   "enable persistence mode (nvidia-persistenced) and run again; reboot if it "
                   "comes back");
}

std::vector<GpuRule> answer_rules() {
  return {{"management-stall", "calls of the driver that did not return", judge_stalls},
          {"management-error", "calls of the driver that failed", judge_failures},
          {"sane-readings", "values that no GPU can have", judge_sanity}};
}

}  // namespace shakedown::node
