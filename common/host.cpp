#include "common/host.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

namespace shakedown {
namespace {

/// The files of a memory control group.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* reclaimable;  // a key of memory.stat, of the group and those below it
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

struct Bounds {
  double available;
  double total;
};

double number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  double value = INFINITY;  // of no file, and of "max"
  return in >> value ? value : INFINITY;
}

double value_of(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file);
  double value = 0;
  for (std::string name; in >> name >> value;)
    if (name == key) return value;
  return 0;
}

/// Every group from `mount`/`group` up to `mount`; a container may not see the upper or lower ones.
void apply_groups(Bounds& bounds, const std::filesystem::path& mount, const std::string& group,
                  const GroupFiles& files) {
  for (auto folder = std::filesystem::path(group).relative_path();; folder = folder.parent_path()) {
    const auto at = mount / folder;
    const double limit = number_in(at / files.limit);
    const double used = number_in(at / files.used);
    if (std::isfinite(limit) && std::isfinite(used)) {
      const double reclaimable = value_of(at / "memory.stat", files.reclaimable);
      bounds.total = std::min(bounds.total, limit);
      bounds.available = std::min(bounds.available, std::max(0.0, limit - used + reclaimable));
    }
    if (folder.empty()) return;
  }
}

}  // namespace

std::string processor_model(const std::string& root) {
  // ARM's kernel has numbers in the place of a name: those of processors next to GPUs.
  constexpr std::pair<const char*, const char*> kArm[] = {
      {"0x41 0xd0c", "Neoverse N1"}, {"0x41 0xd40", "Neoverse V1"}, {"0x41 0xd49", "Neoverse N2"},
      {"0x41 0xd4f", "Neoverse V2"}, {"0x41 0xd84", "Neoverse V3"}, {"0x4e 0x010", "Olympus"}};
  std::ifstream in(root + "/proc/cpuinfo");
  std::string implementer, part;
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    const std::string value = colon == line.npos ? "" : line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;
  }
  for (const auto& [numbers, name] : kArm)
    if (implementer + " " + part == numbers) return name;
  return implementer.empty() ? "" : "ARM implementer " + implementer + ", part " + part;
}

MemoryInfo host_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  Bounds bounds{proc_bytes(meminfo, "MemAvailable:"), proc_bytes(meminfo, "MemTotal:")};
  const std::filesystem::path mount = root + "/sys/fs/cgroup";
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/path", or "4:memory:/path"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") apply_groups(bounds, mount, group, kVersion2);
    if (controllers.find(",memory,") != std::string::npos)
      apply_groups(bounds, mount / "memory", group, kVersion1);
  }
  return {static_cast<std::size_t>(bounds.available), static_cast<std::size_t>(bounds.total)};
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

bool has_other_cores() {
  return static_cast<long>(allowed_cores().size()) < sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace shakedown
