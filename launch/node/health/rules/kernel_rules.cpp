#include "launch/node/health/rules/kernel_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <regex>

namespace shakedown::node {
namespace {

constexpr double kRecent_s = 24 * 3600;  // what is older is a warning

enum class Kind { fatal, by_flag, warning, application, consequence };
struct Xid {
  int code;
  Kind kind;
  const char* meaning;
  const char* action;
};
// NVIDIA's catalogue of XIDs, as far as tools agree on it.
constexpr std::array<Xid, 30> kXids{{
    {8, Kind::application, "GPU stopped processing", ""},
    {13, Kind::application, "graphics engine exception", ""},
    {31, Kind::application, "memory page fault", ""},
    {43, Kind::application, "GPU stopped processing", ""},
    {45, Kind::consequence, "preemptive cleanup", ""},
    {48, Kind::fatal, "uncorrected ECC error", "reset GPU; RMA if it comes back"},
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
}};
constexpr int kCancelling = 162, kCancelled = 163;

const Xid* find_xid(int code) {
  for (const Xid& xid : kXids)
    if (xid.code == code) return &xid;
  return nullptr;
}

/// What the kernel's line itself says; none where it does not.
std::optional<bool> says_fatal(const std::string& text) {
  static const std::regex nonfatal("[Nn]on-?[Ff]atal"), fatal("[Ff]atal");
  if (std::regex_search(text, nonfatal)) return false;
  if (std::regex_search(text, fatal)) return true;
  return std::nullopt;
}

bool is_cancelled(const std::vector<KernelEvent>& events, std::size_t at) {
  if (events[at].code != kCancelled) return false;
  for (std::size_t later = at + 1; later < events.size(); ++later)
    if (events[later].code == kCancelling && events[later].pci_id == events[at].pci_id) return true;
  return false;
}

Judgement judge_switch_event(const KernelEvent& event, const std::string& cause) {
  const char* action = "inspect NVSwitch and its links; restart nvidia-fabricmanager";
  return says_fatal(event.text) == false ? warning(Class::infrastructure, cause, action)
                                         : failure(Class::infrastructure, cause, action);
}

/// None where the event says nothing of the GPU.
std::optional<Judgement> judge_event(const KernelEvent& event) {
  const Xid* known = find_xid(event.code);
  const std::string cause =
      fmt::format("{} {}{} of {}, {:.1f} h ago: {}", event.nvswitch ? "SXid" : "XID", event.code,
                  known && !event.nvswitch ? fmt::format(" ({})", known->meaning) : "",
                  event.pci_id, event.age_s / 3600, event.text.substr(0, 80));
  if (event.nvswitch) return judge_switch_event(event, cause);
  if (event.text.find("caused by previous") != std::string::npos) return std::nullopt;
  if (event.code == kCancelling) return std::nullopt;
  if (known == nullptr)
    return warning(Class::hardware, cause, "look this XID up in NVIDIA's catalogue");
  switch (known->kind) {
    case Kind::application:
    case Kind::consequence: return std::nullopt;
    case Kind::warning: return warning(Class::hardware, cause, known->action);
    case Kind::fatal: return failure(Class::hardware, cause, known->action);
    case Kind::by_flag: break;
  }
  const auto fatal = says_fatal(event.text);
  if (!fatal) return not_known(cause + ": fatal or not is not said", known->action);
  return *fatal ? failure(Class::hardware, cause, known->action)
                : warning(Class::hardware, cause, known->action);
}

}  // namespace

std::vector<Judgement> judge_kernel_events(const std::vector<KernelEvent>& events) {
  std::vector<Judgement> judgements;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (is_cancelled(events, i)) continue;
    auto judgement = judge_event(events[i]);
    if (!judgement) continue;
    if (events[i].age_s > kRecent_s)
      judgement->severity = std::min(judgement->severity, Severity::warn);
    judgements.push_back(*judgement);
  }
  return judgements;
}

}  // namespace shakedown::node
