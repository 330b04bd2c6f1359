#include "launch/node/health/facts/near_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace shakedown::node {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& list) {
  std::vector<int> cores;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    int first = 0;
    int last = 0;
    const int read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (read < 1) continue;
    for (int core = first; core <= (read == 2 ? last : first); ++core) cores.push_back(core);
  }
  return cores;
}

NearDevice::NearDevice(const std::string& pci_id, const std::string& root) {
  CPU_ZERO(&before_);
  std::string id = pci_id;
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string node = first_line(root + "/sys/bus/pci/devices/" + id + "/numa_node");
  if (id.empty() || node.empty() || node.front() == '-') return;  // -1: the firmware does not say
  const std::vector<int> cores =
      parse_cpu_list(first_line(root + "/sys/devices/system/node/node" + node + "/cpulist"));
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
