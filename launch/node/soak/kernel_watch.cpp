#include "launch/node/soak/kernel_watch.hpp"

#include <fstream>
#include <utility>

namespace shakedown::node {

KernelWatch::KernelWatch(std::string pci_id, std::string root)
    : pci_id_(std::move(pci_id)), root_(std::move(root)), start_s_(uptime_s()) {
  if (const auto log = read_kernel_log(kmsg(), start_s_)) last_ = log->last_sequence;
}

double KernelWatch::uptime_s() const {
  std::ifstream in(root_ + "/proc/uptime");
  double seconds = 0;
  in >> seconds;
  return seconds;
}

std::optional<std::vector<KernelEvent>> KernelWatch::events() {
  const double now_s = uptime_s();
  auto log = read_kernel_log(kmsg(), now_s);
  if (!log) return std::nullopt;
  // By their numbers: the clock of messages drifts from the uptime's, by a minute in some months.
  const auto is_known = [&](const KernelEvent& event) {
    return last_ ? event.sequence <= *last_ : event.age_s > now_s - start_s_;
  };
  const auto is_ours = [&](const KernelEvent& event) {
    if (event.kind == KernelEventKind::sxid) return true;
    if (!event.pci_id.empty()) return same_pci_device(event.pci_id, pci_id_);
    return event.kind != KernelEventKind::not_understood ||
           event.text.find("Xid") != event.text.npos;
  };
  std::erase_if(log->events,
                [&](const KernelEvent& event) { return is_known(event) || !is_ours(event); });
  const bool has_gap = last_ ? log->first_sequence > *last_ + 1
                             : !log->is_whole() && log->reaches_back_s < now_s - start_s_;
  last_ = log->last_sequence;
  if (has_gap && log->events.empty()) return std::nullopt;
  return std::move(log->events);
}

}  // namespace shakedown::node
