// Libraries, variables, and the kernel's messages.
#include "launch/node/health/rules/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
namespace {

std::string major_of(const std::string& version) { return version.substr(0, version.find('.')); }

Judgements judge_libraries(const Json& libraries, const Json&) {
  Judgements all;
  std::vector<std::string> same;
  for (const auto& [name, version] : libraries.items()) {
    const auto built = libraries.find(name + "_built");
    if (built == libraries.end()) continue;
    const std::string now = version, then = *built;
    if (now.empty())
      all.push_back(not_known(fmt::format("{}: the version loaded is not known", name)));
    else if (major_of(now) != major_of(then))
      all.push_back(failure(Class::software,
                            fmt::format("{} {} is loaded, built against {}", name, now, then),
                            fmt::format("load {} {}, or build again", name, then)));
    else
      same.push_back(now == then ? fmt::format("{} {}", name, now)
                                 : fmt::format("{} {} (built against {})", name, now, then));
  }
  if (!same.empty()) all.push_back(passed(fmt::format("{}", fmt::join(same, ", "))));
  return all;
}

Judgement judge_blocking(const Json& variables, const Json&) {
  if (variables.value("CUDA_LAUNCH_BLOCKING", "0") == "0")
    return passed("CUDA_LAUNCH_BLOCKING is not set");
  return warning(Class::config, "CUDA_LAUNCH_BLOCKING is set: every launch waits for the GPU",
                 "unset CUDA_LAUNCH_BLOCKING");
}

struct Variable {
  const char* name;  // without NCCL_
  const char* slow;  // the value that costs speed; "*": any; "": none
  const char* does;
};
constexpr Variable kVariables[] = {
    {"ALGO", "*", "allows only these algorithms (Ring, Tree, NVLS, CollnetDirect)"},
    {"BUFFSIZE", "*", "size of the buffers between two GPUs"},
    {"CHECKS_DISABLE", "", "leaves out checks of arguments"},
    {"COLLNET_ENABLE", "", "reductions in the network's switches (SHARP)"},
    {"COMM_ID", "", "address where ranks meet"},
    {"CONF_FILE", "", "file from which further variables are read"},
    {"CROSS_NIC", "", "whether a ring may use different NICs on different nodes"},
    {"CUMEM_ENABLE", "", "memory by the driver's virtual memory calls"},
    {"DEBUG", "", "writes a log: WARN, INFO, TRACE"},
    {"DEBUG_FILE", "", "file of the log"},
    {"DEBUG_SUBSYS", "", "parts of NCCL that write to the log"},
    {"DMABUF_ENABLE", "0", "GPUDirect RDMA by dma-buf; 0 turns it off"},
    {"GRAPH_DUMP_FILE", "", "file to which rings and trees are written"},
    {"GRAPH_FILE", "*", "fixes the rings and trees from a file"},
    {"IB_ADAPTIVE_ROUTING", "", "adaptive routing of InfiniBand"},
    {"IB_CUDA_SUPPORT", "0", "GPUDirect RDMA; 0 turns it off"},
    {"IB_DISABLE", "1", "1 turns InfiniBand off: between nodes TCP is left"},
    {"IB_GID_INDEX", "", "GID that RoCE uses; a wrong one fails or falls back"},
    {"IB_HCA", "*", "uses only these InfiniBand devices"},
    {"IB_PCI_RELAXED_ORDERING", "0", "relaxed ordering of PCIe writes; 0 turns it off"},
    {"IB_QPS_PER_CONNECTION", "", "queue pairs per connection"},
    {"IB_RETRY_CNT", "", "retries before a connection fails"},
    {"IB_SL", "", "service level of InfiniBand"},
    {"IB_SPLIT_DATA_ON_QPS", "", "whether a message uses all queue pairs"},
    {"IB_TC", "", "traffic class of InfiniBand"},
    {"IB_TIMEOUT", "", "time after which a packet is sent again"},
    {"IGNORE_CPU_AFFINITY", "", "lets NCCL place its threads outside of the rank's cores"},
    {"LAUNCH_MODE", "", "launches of a group: PARALLEL or GROUP"},
    {"LOCAL_REGISTER", "", "registers buffers of captured graphs"},
    {"MAX_CTAS", "*", "most blocks of a kernel, which bounds its bandwidth"},
    {"MAX_NCHANNELS", "*", "most channels, which bounds the bandwidth"},
    {"MAX_NRINGS", "*", "old name of NCCL_MAX_NCHANNELS"},
    {"MIN_CTAS", "", "fewest blocks of a kernel"},
    {"MIN_NCHANNELS", "", "fewest channels"},
    {"MIN_NRINGS", "", "old name of NCCL_MIN_NCHANNELS"},
    {"NET", "*", "uses only this network module"},
    {"NET_GDR_LEVEL", "*", "how near GPU and NIC must be for GPUDirect RDMA"},
    {"NET_GDR_READ", "0", "GPUDirect RDMA for sends; 0 turns it off"},
    {"NET_PLUGIN", "", "network plugin: libnccl-net-NAME.so"},
    {"NET_SHARED_BUFFERS", "", "shares network buffers between connections"},
    {"OOB_NET_IFNAME", "", "NICs for ranks to meet"},
    {"PROFILER_PLUGIN", "", "plugin that writes a profile"},
    {"NSOCKS_PERTHREAD", "", "sockets per thread of TCP"},
    {"NTHREADS", "*", "threads per block of a kernel"},
    {"NVB_DISABLE", "1", "1 turns routes through another GPU off"},
    {"NVLS_ENABLE", "0", "reductions in NVSwitches; 0 turns them off"},
    {"P2P_DISABLE", "1", "1 turns NVLink and PCIe peer access off: memory of the host is left"},
    {"P2P_LEVEL", "*", "how near GPUs must be for peer access"},
    {"P2P_NVL_CHUNKSIZE", "*", "size of a piece of a message over NVLink"},
    {"P2P_DIRECT_DISABLE", "1", "1 turns direct peer access within a process off"},
    {"PROTO", "*", "allows only these protocols (LL, LL128, Simple)"},
    {"PROXY_DUMP_SIGNAL", "", "signal at which the proxy writes its state"},
    {"PXN_DISABLE", "1", "1 turns sending through another GPU's NIC off"},
    {"RAS_ENABLE", "", "service that reports hung ranks"},
    {"RUN_DIAGNOSTICS", "", "tests every pair of GPUs when a communicator starts"},
    {"SHM_DISABLE", "1", "1 turns shared memory off: 15 to 20 % slower without peer access"},
    {"SOCKET_FAMILY", "", "AF_INET or AF_INET6"},
    {"SOCKET_IFNAME", "", "NICs for TCP, and for ranks to meet"},
    {"SOCKET_NTHREADS", "", "threads of TCP per connection"},
    {"TOPO_DUMP_FILE", "", "file to which the topology is written"},
    {"TOPO_FILE", "*",
     "topology from a file, not from the machine: a wrong one is slow (AzNHC#142)"},
    {"TUNER_PLUGIN", "", "plugin that chooses algorithms"},
    {"VERSION", "", "NVIDIA's container images name their NCCL here: NCCL does not read it"},
    {"WORK_FIFO_DEPTH", "", "length of the queue of work"},
};

/// One judgement per variable that is set: a warning for one that takes a path or an algorithm away
/// from NCCL, for one that is not in the table, and for one whose value the host cannot follow; a
/// failure where NCCL does not start then.
Judgements judge_nccl(const Json& variables, const Json& facts) {
  const Json& wrong = fact_of(facts, "nccl_wrong");
  Judgements all;
  for (const auto& [name, value] : variables.get<std::map<std::string, std::string>>()) {
    const std::string text = fmt::format("{}={}", name, value);
    const auto known = std::ranges::find_if(kVariables, [&, &key = name](const Variable& variable) {
      return key == std::string("NCCL_") + variable.name;
    });
    if (wrong.contains(name)) {
      const auto judge = name.ends_with("_IFNAME") ? failure : warning;
      all.push_back(judge(Class::config,
                          fmt::format("{}: {}", text, wrong.at(name).get<std::string>()),
                          fmt::format("unset {}, or name what this node has", name)));
    } else if (known == std::end(kVariables)) {
      all.push_back(warning(Class::config, text + ": not known to this program",
                            "check the spelling: NCCL ignores names it does not know"));
    } else if (std::string(known->slow) == "*" || value == known->slow) {
      all.push_back(warning(Class::config, fmt::format("{}: {}", text, known->does),
                            fmt::format("unset {} unless it is needed", name)));
    } else {
      all.push_back(passed(fmt::format("{}: {}", text, known->does)));
    }
  }
  if (all.empty()) all.push_back(passed("no NCCL variable is set"));
  return all;
}

// XIDs, SXids, and the driver's other errors.

enum class Kind { fatal, by_flag, by_action, warning };
struct Xid {
  int code;
  Kind kind;
  const char* meaning;
  const char* action;
};
// Of applications, their cleanup (45), and details of XID 48 (171, 172).
constexpr int kNoFault[] = {8, 13, 31, 43, 45, 69, 171, 172};
// NVIDIA's catalogue of the others, as far as tools agree on it.
constexpr std::array<Xid, 35> kXids{{
    {46, Kind::fatal, "GPU stopped processing", "reset GPU"},
    {48, Kind::fatal, "uncorrected ECC error", "reset GPU; RMA if it comes back"},
    {54, Kind::fatal, "auxiliary power is not connected", "inspect the GPU's power cables"},
    {61, Kind::fatal, "internal microcontroller breakpoint", "reset GPU"},
    {62, Kind::fatal, "internal microcontroller halt", "reset GPU"},
    {63, Kind::warning, "row remap recorded", "reset GPU, which does the remap"},
    {64, Kind::fatal, "row remap failed", "RMA"},
    {74, Kind::fatal, "NVLink error", "inspect links of this GPU; reset GPU"},
    {79, Kind::fatal, "GPU has fallen off the bus", "reboot; reseat GPU, RMA if it comes back"},
    {92, Kind::warning, "high rate of corrected ECC errors", "run again after a day"},
    {94, Kind::warning, "contained ECC error", "reset GPU when it is idle"},
    {95, Kind::fatal, "uncontained ECC error", "reset GPU; RMA if it comes back"},
    {109, Kind::fatal, "context switch timeout", "reset GPU"},
    {110, Kind::fatal, "security fault", "reboot; RMA if it comes back"},
    {119, Kind::fatal, "GSP timeout", "reset GPU; update the driver"},
    {120, Kind::fatal, "GSP error", "reset GPU; update the driver"},
    {121, Kind::warning, "corrected C2C link error", "reset GPU when it is idle"},
    {140, Kind::fatal, "unrecovered ECC error", "reset GPU; RMA if it comes back"},
    {143, Kind::fatal, "GPU initialization failed", "reset GPU; reboot"},
    {144, Kind::by_flag, "NVLink SAW error", "inspect the link; reset GPU"},
    {145, Kind::by_flag, "NVLink RLW error", "inspect the link; reset GPU"},
    {146, Kind::by_flag, "NVLink TLW error", "inspect the link; reset GPU"},
    {147, Kind::by_flag, "NVLink TREX error", "inspect the link; reset GPU"},
    {148, Kind::by_flag, "NVLink NVLPW_CTRL error", "inspect the link; reset GPU"},
    {149, Kind::by_flag, "NVLink NETIR error", "inspect the link; reset GPU"},
    {150, Kind::by_flag, "NVLink MSE error", "inspect the link; reset GPU"},
    {154, Kind::by_action, "recovery action changed", ""},
    {156, Kind::warning, "resource retired", "reset GPU when it is idle"},
    {157, Kind::warning, "resource could not be retired", "RMA candidate if it repeats"},
    {158, Kind::fatal, "fatal timeout", "reset GPU"},
    {163, Kind::warning, "power smoothing disengaged", "inspect cooling and power; reset GPU"},
    {164, Kind::warning, "power smoothing near the end of its life", "RMA candidate"},
    {165, Kind::warning, "power smoothing at the end of its life", "RMA candidate"},
    {167, Kind::fatal, "PCIe fatal timeout", "reboot; reseat GPU, RMA if it comes back"},
    {169, Kind::fatal, "internal microcontroller halt", "reset GPU"},
}};

const Xid* find_xid(int code) {
  const auto found = std::ranges::find(kXids, code, &Xid::code);
  return found == kXids.end() ? nullptr : &*found;
}

bool has(const std::string& text, const char* words) { return text.find(words) != text.npos; }

/// What the kernel's line itself says; none where it does not.
std::optional<bool> says_fatal(const std::string& text) {
  for (const char* words : {"Nonfatal", "nonfatal", "Non-fatal", "non-fatal", "Non-Fatal"})
    if (has(text, words)) return false;
  if (has(text, "Fatal") || has(text, "fatal")) return true;
  return std::nullopt;
}

/// "3 min".
std::string text_of_age(double age_s) {
  if (age_s < 120) return fmt::format("{:.0f} s", std::max(0.0, age_s));
  if (age_s < 7200) return fmt::format("{:.0f} min", age_s / 60);
  if (age_s < 48 * 3600) return fmt::format("{:.1f} h", age_s / 3600);
  return fmt::format("{:.0f} days", age_s / 86400);
}

constexpr int kAdvice = 154, kReengaged = 162, kDisengaged = 163;

/// The number in "... changed from 0x0 (None) to 0x1 (GPU Reset Required)".
std::optional<unsigned long> advice_in(const std::string& text) {
  const auto at = text.find("to 0x");
  if (at == text.npos) return std::nullopt;
  const char* const digits = text.c_str() + at + 5;
  char* end = nullptr;
  const auto number = std::strtoul(digits, &end, 16);
  return end == digits ? std::nullopt : std::optional(number);
}

bool is_xid(const KernelEvent& event, int code) {
  return event.kind == KernelEventKind::xid && event.code == code;
}

/// Power smoothing is back; the driver advises anew.
bool is_superseded(const std::vector<KernelEvent>& events, std::size_t at) {
  const KernelEvent& event = events[at];
  const int by = is_xid(event, kDisengaged) ? kReengaged : kAdvice;
  if (!is_xid(event, kDisengaged) && !is_xid(event, kAdvice)) return false;
  return std::any_of(events.begin() + static_cast<std::ptrdiff_t>(at) + 1, events.end(),
                     [&](const KernelEvent& later) {
                       return is_xid(later, by) && same_pci_device(later.pci_id, event.pci_id);
                     });
}

/// None where it is to 0x0.
std::optional<Judgement> judge_advice(const std::string& text) {
  const auto number = advice_in(text);
  if (!number) return not_known("");
  const Judgement advice = judge_recovery_action(word_of(kRecoveryActions, *number));
  return advice.outcome == Outcome::pass ? std::nullopt : std::optional(advice);
}

/// What an event says of the GPU, without its cause; none where it says nothing.
std::optional<Judgement> judge_xid(const KernelEvent& event) {
  if (has(event.text, "caused by previous")) return std::nullopt;
  if (event.code == kReengaged || std::ranges::count(kNoFault, event.code) > 0) return std::nullopt;
  const Xid* known = find_xid(event.code);
  if (known == nullptr)
    return warning(Class::hardware, "", "look this XID up in NVIDIA's catalogue");
  switch (known->kind) {
    case Kind::warning: return warning(Class::hardware, "", known->action);
    case Kind::fatal: return failure(Class::hardware, "", known->action);
    case Kind::by_action: return judge_advice(event.text);
    case Kind::by_flag: break;
  }
  const auto fatal = says_fatal(event.text);
  if (!fatal) return not_known("", known->action);
  return *fatal ? failure(Class::hardware, "", known->action)
                : warning(Class::hardware, "", known->action);
}

/// None of the lines of numbers that follow one that says whether it is fatal.
std::optional<Judgement> judge_sxid(const KernelEvent& event) {
  if (event.text.starts_with("Severity ") || event.text.starts_with("Data {")) return std::nullopt;
  const char* action = "inspect NVSwitch and its links; restart nvidia-fabricmanager";
  return says_fatal(event.text) == false ? warning(Class::infrastructure, "", action)
                                         : failure(Class::infrastructure, "", action);
}

std::optional<Judgement> judge_event(const KernelEvent& event) {
  switch (event.kind) {
    case KernelEventKind::xid: return judge_xid(event);
    case KernelEventKind::sxid: return judge_sxid(event);
    case KernelEventKind::off_the_bus:
      return failure(Class::hardware, "", "reboot; reseat GPU, RMA if it comes back");
    case KernelEventKind::init_failed:
      return failure(Class::hardware, "", "reset GPU; reboot; RMA if it comes back");
    case KernelEventKind::probe_failed:
      return failure(Class::software, "",
                     "see the messages before it; install a driver that supports this GPU, reboot");
    case KernelEventKind::not_understood: return not_known("", "look this message up");
    case KernelEventKind::driver_loading: break;
  }
  return std::nullopt;
}

/// "XID 79 (GPU has fallen off the bus)".
std::string name_of(const KernelEvent& event) {
  if (event.kind == KernelEventKind::sxid) return fmt::format("SXid {}", event.code);
  if (event.kind == KernelEventKind::not_understood) return "message in an unknown form";
  if (event.kind != KernelEventKind::xid) return "message of the driver";
  const Xid* known = find_xid(event.code);
  return fmt::format("XID {}{}", event.code, known ? fmt::format(" ({})", known->meaning) : "");
}

std::string cause_of(const KernelEvent& last, std::size_t times, const Judgement& judgement) {
  const bool unsaid =
      judgement.outcome == Outcome::unknown && last.kind != KernelEventKind::not_understood;
  return fmt::format(
      "{}{}, {}{} ago: {}{}", name_of(last), last.pci_id.empty() ? "" : " of " + last.pci_id,
      times > 1 ? fmt::format("{} times, last ", times) : "", text_of_age(last.age_s),
      last.text.substr(0, 80), unsaid ? "; whether it is fatal is not said" : "");
}

/// Those that still hold: not those of a GPU of which the driver said later that nothing is left to
/// do, nor those before the driver was loaded again.
std::vector<KernelEvent> without_cured(const std::vector<KernelEvent>& events) {
  std::vector<KernelEvent> left;  // from the last to the first
  std::vector<std::string> cured;
  for (auto at = events.rbegin(); at != events.rend(); ++at) {
    if (at->kind == KernelEventKind::driver_loading) break;
    const bool is_cured = std::ranges::any_of(
        cured, [&](const std::string& id) { return same_pci_device(id, at->pci_id); });
    if (is_xid(*at, kAdvice) && advice_in(at->text) == 0ul)
      cured.push_back(at->pci_id);
    else if (!is_cured)
      left.push_back(*at);
  }
  std::ranges::reverse(left);
  return left;
}

Judgements judge_kernel_log(const Json& fact, double window_h) {
  const KernelLog log = read_as<KernelLog>(fact);
  const std::vector<KernelEvent> left = without_cured(log.events);
  auto all = judge_kernel_events(left, window_h);
  if (!log.is_whole() && log.reaches_back_s < 3600 * window_h)
    all.push_back(not_known(fmt::format("the kernel's messages reach back {} only: XIDs before "
                                        "that are not known",
                                        text_of_age(log.reaches_back_s)),
                            "see journalctl -k; boot with log_buf_len=16M"));
  const auto loads =
      std::ranges::count(log.events, KernelEventKind::driver_loading, &KernelEvent::kind);
  const bool cured = std::ssize(log.events) - loads > std::ssize(left);
  if (all.empty())
    all.push_back(passed(
        cured ? "no XID in the kernel's messages since the GPU was reset or the driver loaded"
        : left.empty()
            ? "no XID in the kernel's messages"
            : fmt::format("{} XIDs, all of applications or their cleanup", left.size())));
  return all;
}

}  // namespace

Judgements judge_kernel_events(const std::vector<KernelEvent>& events, double window_h) {
  struct Repeated {
    Judgement judgement;
    const KernelEvent* last;
    std::size_t times = 0;
  };
  using Key = std::tuple<KernelEventKind, std::string, int, MaybeOutcome>;
  std::map<Key, std::size_t> known;
  std::vector<Repeated> found;  // in the order in which each came first
  for (std::size_t i = 0; i < events.size(); ++i) {
    const KernelEvent& event = events[i];
    if (is_superseded(events, i)) continue;
    auto judgement = judge_event(event);
    if (!judgement) continue;
    if (event.age_s > 3600 * window_h && judgement->outcome == Outcome::fail)
      judgement->outcome = Outcome::warn;
    const Key key{event.kind, event.pci_id, event.code, judgement->outcome};
    const auto at = known.emplace(key, found.size());
    if (at.second) found.push_back({*judgement, &event});
    Repeated& repeated = found[at.first->second];
    repeated.last = &event;
    ++repeated.times;
  }
  Judgements judgements;
  for (Repeated& repeated : found) {
    repeated.judgement.cause = cause_of(*repeated.last, repeated.times, repeated.judgement);
    judgements.push_back(std::move(repeated.judgement));
  }
  return judgements;
}

std::vector<HostRule> software_rules(double xid_window_h) {
  return {
      {"libraries", "libraries loaded, and built against", "libraries",
       "versions of the libraries are not known", judge_libraries},
      {"launch-blocking", "CUDA_LAUNCH_BLOCKING", "cuda_variables",
       "the environment is not readable", judge_blocking},
      {"nccl-variables", "NCCL variables that are set, and what they do", "nccl_variables",
       "the environment is not readable", judge_nccl},
      {kKernelLog, "XIDs and SXids in the kernel's messages", kKernelLogFact,
       "only root can read it",
       [xid_window_h](const Json& log, const Json&) { return judge_kernel_log(log, xid_window_h); },
       false, "run as root"}};
}

}  // namespace shakedown::node
