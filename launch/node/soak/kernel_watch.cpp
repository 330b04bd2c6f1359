#include "launch/node/soak/kernel_watch.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <tuple>
#include <utility>

namespace shakedown::node {

bool same_pci_device(const std::string& one, const std::string& other) {
  const auto place_of = [](const std::string& id) {
    unsigned domain = 0, bus = 0, device = 0;
    const int read = std::sscanf(id.c_str(), "%x:%x:%x", &domain, &bus, &device);
    return std::tuple(read == 3, domain, bus, device);
  };
  return std::get<0>(place_of(one)) && place_of(one) == place_of(other);
}

KernelWatch::KernelWatch(std::string pci_id, std::string root)
    : pci_id_(std::move(pci_id)), root_(std::move(root)), newest_s_(uptime_s()) {
  // The clock of messages drifts from the uptime's, by a minute in some months: messages are
  // compared with messages alone.
  if (const auto known = read_kernel_events(kmsg(), 0)) {
    newest_s_ = 0;
    for (const KernelEvent& event : *known) newest_s_ = std::max(newest_s_, -event.age_s);
  }
}

double KernelWatch::uptime_s() const {
  std::ifstream in(root_ + "/proc/uptime");
  double seconds = 0;
  in >> seconds;
  return seconds;
}

std::optional<std::vector<KernelEvent>> KernelWatch::events() {
  auto events = read_kernel_events(kmsg(), 0);  // an age is then minus the message's time
  if (!events) return events;
  const double known_s = newest_s_;
  const double now_s = uptime_s();
  for (const KernelEvent& event : *events) newest_s_ = std::max(newest_s_, -event.age_s);
  std::erase_if(*events, [&](const KernelEvent& event) {
    const bool ours = event.nvswitch || same_pci_device(event.pci_id, pci_id_);
    return !ours || -event.age_s <= known_s;
  });
  for (KernelEvent& event : *events) event.age_s += now_s;
  return events;
}

}  // namespace shakedown::node
