#include "launch/node/soak/kernel_watch.hpp"

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
    : pci_id_(std::move(pci_id)), root_(std::move(root)), since_s_(uptime_s()) {}

double KernelWatch::uptime_s() const {
  std::ifstream in(root_ + "/proc/uptime");
  double seconds = 0;
  in >> seconds;
  return seconds;
}

std::optional<std::vector<KernelEvent>> KernelWatch::events() {
  const double now_s = uptime_s();
  auto events = read_kernel_events(root_ + "/dev/kmsg", now_s);
  const double since_s = std::exchange(since_s_, now_s);
  if (events)
    std::erase_if(*events, [&](const KernelEvent& event) {
      return now_s - event.age_s <= since_s || !same_pci_device(event.pci_id, pci_id_);
    });
  return events;
}

}  // namespace shakedown::node
