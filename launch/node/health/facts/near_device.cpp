#include "launch/node/health/facts/near_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown::node {

NearDevice::NearDevice(const std::string& pci_id, const std::string& root) {
  CPU_ZERO(&before_);
  std::string id = pci_id;
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const FactSource source{root, {}};
  const std::string node = source.line_of("/sys/bus/pci/devices/" + id + "/numa_node");
  if (id.empty() || node.empty() || node.front() == '-') return;  // -1: the firmware does not say
  const std::vector<int> cores =
      numbers_in(source.line_of("/sys/devices/system/node/node" + node + "/cpulist"));
  cpu_set_t near;
  CPU_ZERO(&near);
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  for (const int core : cores)
    if (core >= 0 && core < CPU_SETSIZE && CPU_ISSET(core, &before_)) CPU_SET(core, &near);
  moved_ = CPU_COUNT(&near) > 0 && sched_setaffinity(0, sizeof(near), &near) == 0;
  text_ = moved_ ? fmt::format("NUMA node {}", node)
                 : fmt::format("{} NUMA node {}: no core of it is allowed", kNotNear, node);
}

NearDevice::~NearDevice() {
  if (moved_) sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace shakedown::node
