#include "launch/node/health/rules/host_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
namespace {

enum class Kind { fatal, by_flag, by_action, warning, application, consequence };
struct Xid {
  int code;
  Kind kind;
  const char* meaning;
  const char* action;
};
// NVIDIA's catalogue of XIDs, as far as tools agree on it.
constexpr std::array<Xid, 43> kXids{{
    {8, Kind::application, "GPU stopped processing", ""},
    {13, Kind::application, "graphics engine exception", ""},
    {31, Kind::application, "memory page fault", ""},
    {43, Kind::application, "GPU stopped processing", ""},
    {45, Kind::consequence, "preemptive cleanup", ""},
    {46, Kind::fatal, "GPU stopped processing", "reset GPU"},
    {48, Kind::fatal, "uncorrected ECC error", "reset GPU; RMA if it comes back"},
    {54, Kind::fatal, "auxiliary power is not connected", "inspect the GPU's power cables"},
    {61, Kind::fatal, "internal microcontroller breakpoint", "reset GPU"},
    {62, Kind::fatal, "internal microcontroller halt", "reset GPU"},
    {63, Kind::warning, "row remap recorded", "reset GPU, which does the remap"},
    {64, Kind::fatal, "row remap failed", "RMA"},
    {69, Kind::application, "graphics engine class error", ""},
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
    {171, Kind::consequence, "details of XID 48", ""},
    {172, Kind::consequence, "details of XID 48", ""},
}};

const Xid* find_xid(int code) {
  for (const Xid& xid : kXids)
    if (xid.code == code) return &xid;
  return nullptr;
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
  if (event.code == kReengaged) return std::nullopt;
  const Xid* known = find_xid(event.code);
  if (known == nullptr)
    return warning(Class::hardware, "", "look this XID up in NVIDIA's catalogue");
  switch (known->kind) {
    case Kind::application:
    case Kind::consequence: return std::nullopt;
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
  const KernelLog log = kernel_log_of(fact);
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
    if (event.age_s > 3600 * window_h) judgement = at_most_warning(std::move(*judgement));
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

HostRule kernel_log_rule(double xid_window_h) {
  return {
      kKernelLog, "XIDs and SXids in the kernel's messages", kKernelLogFact,
      not_known("only root can read it", "run as root"),
      [xid_window_h](const Json& log, const Json&) { return judge_kernel_log(log, xid_window_h); }};
}

}  // namespace shakedown::node
