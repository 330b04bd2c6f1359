#include "launch/node/health/facts/host_facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "common/backend.hpp"
#include "common/host.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/watch.hpp"
#include "launch/node/health/facts/json_fields.hpp"
#include "launch/node/health/facts/kernel_log.hpp"

namespace shakedown::node {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

/// Null where the reading failed: a file had other contents than any kernel writes.
Json value_of(std::future<Json>& read) {
  try {
    return read.get();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

const std::string* FactSource::variable(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

std::string FactSource::line_of(const std::string& path) const {
  std::ifstream in(root + path);
  std::string line;
  std::getline(in, line);
  return trimmed(line);
}

std::vector<std::string> FactSource::lines_of(const std::string& path) const {
  std::ifstream in(root + path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> FactSource::names_in(const std::string& folder) const {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(root + folder, error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename());
  std::ranges::sort(names);
  return names;
}

std::set<std::string> FactSource::each_line_of(const std::string& folder,
                                               const std::string& file) const {
  std::set<std::string> lines;
  for (const std::string& name : names_in(folder))
    lines.insert(line_of(folder + "/" + name + "/" + file));
  lines.erase("");
  return lines;
}

std::vector<int> numbers_in(const std::string& list) {
  std::vector<int> cores;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    for (int core = first; read >= 1 && core <= (read == 2 ? last : first); ++core)
      cores.push_back(core);
  }
  return cores;
}

double uptime_s(const FactSource& source) {
  return std::strtod(source.line_of("/proc/uptime").c_str(), nullptr);
}

FactSource facts_here(const std::string& root) {
  FactSource source{root, {}};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (const auto equals = text.find('='); equals != std::string::npos)
      source.environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return source;
}

Json read_facts(const FactSource& source, double deadline_s, const std::vector<Fact>& facts) {
  std::vector<std::future<Json>> reads;
  for (const Fact& fact : facts)
    reads.push_back(start_detached<Json>([source, fact] { return fact.read(source); }));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_s);
  Json read = Json::object();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (reads[i].wait_until(end) != std::future_status::ready) {
      read["stalled"].push_back(facts[i].name);
      continue;
    }
    if (const Json value = value_of(reads[i]); !value.is_null()) read[facts[i].name] = value;
  }
  return read;
}

// Operating system, cores, memory and limits.

namespace {

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

/// The value of the first "key<separator>value" line of a file.
std::string value_in(const FactSource& source, const std::string& path, const std::string& key,
                     char separator) {
  for (const std::string& line : source.lines_of(path)) {
    const auto at = line.find(separator);
    if (at == std::string::npos || !line.starts_with(key)) continue;
    std::string value = line.substr(at + 1);
    value.erase(0, value.find_first_not_of(" \t\""));
    while (!value.empty() && (value.back() == '"' || value.back() == ' ')) value.pop_back();
    return value;
  }
  return "";
}

// The forms that several facts have.

Read text_in(const char* path) {
  return [path](const FactSource& source) { return text_or_null(source.line_of(path)); };
}
/// Of the environment: those that are set.
Read variables(std::vector<const char*> names) {
  return [names = std::move(names)](const FactSource& source) {
    Json found = Json::object();
    for (const char* name : names)
      if (const std::string* value = source.variable(name)) found[name] = *value;
    return found;
  };
}
/// The soft limit of /proc/self/limits: a number, or "unlimited".
Read limit(const char* name) {
  return [name](const FactSource& source) -> Json {
    for (const std::string& line : source.lines_of("/proc/self/limits")) {
      if (!line.starts_with(name)) continue;
      std::istringstream in(line.substr(std::string(name).size()));
      std::string soft;
      if (!(in >> soft)) return {};
      if (soft == "unlimited") return soft;
      return std::strtod(soft.c_str(), nullptr);
    }
    return {};
  };
}
/// Space and inodes. A server that does not answer blocks this for ever: read_facts has a deadline.
Json space_at(const std::string& path) {
  struct statvfs found {};
  if (statvfs(path.c_str(), &found) != 0) return {};
  const double block = static_cast<double>(found.f_frsize);
  return {{"total_bytes", block * static_cast<double>(found.f_blocks)},
          {"free_bytes", block * static_cast<double>(found.f_bavail)},
          {"inodes", found.f_files},  // 0 where the file system does not count them
          {"free_inodes", found.f_favail}};
}
Read space(const char* path) {
  return [path](const FactSource& source) { return space_at(source.root + path); };
}

/// Files of NCCL and Open MPI in /dev/shm, of this user, that no process seen here has mapped.
int left_over(const FactSource& source) {
  static constexpr std::array kOurs{"nccl-", "vader_segment", "sm_segment"};
  std::set<std::string> found;
  for (const std::string& name : source.names_in("/dev/shm")) {
    struct stat file {};
    if (std::ranges::any_of(kOurs, [&](const char* ours) { return name.starts_with(ours); }) &&
        lstat((source.root + "/dev/shm/" + name).c_str(), &file) == 0 && S_ISREG(file.st_mode) &&
        file.st_uid == geteuid())
      found.insert("/dev/shm/" + name);
  }
  if (found.empty()) return 0;
  for (const std::string& process : source.names_in("/proc"))
    for (const std::string& map : source.lines_of("/proc/" + process + "/maps"))
      if (const auto at = map.find("/dev/shm/"); at != std::string::npos)
        found.erase(map.substr(at, map.find(' ', at) - at));
  return static_cast<int>(found.size());
}

Json read_shm(const FactSource& source) {
  const std::string folder = source.root + "/dev/shm";
  Json shm = space_at(folder);
  if (shm.is_null()) return {};
  shm["writable"] = access(folder.c_str(), W_OK | X_OK) == 0;
  shm["left_over"] = left_over(source);
  for (const std::string& line : source.lines_of("/proc/self/mounts")) {
    std::istringstream in(line);
    std::string device, where, type;
    in >> device >> where >> type;
    if (where == "/dev/shm" || (where == "/" && !shm.contains("file_system")))
      shm["file_system"] = type;
  }
  return shm;
}

Json positive_or_null(double value) { return value > 0 ? Json(value) : Json(); }

Json read_cores_online(const FactSource& source) {
  const auto online = numbers_in(source.line_of("/sys/devices/system/cpu/online"));
  return positive_or_null(static_cast<double>(online.size()));
}
Json read_cores_allowed(const FactSource& source) {
  const std::string list = value_in(source, "/proc/self/status", "Cpus_allowed_list", ':');
  const auto cores = numbers_in(list);
  return cores.empty() ? Json() : Json{{"cores", cores.size()}, {"list", list}};
}

/// Cores' worth of time that the control group of a container or job may use; null: no limit known.
Json read_cpu_quota(const FactSource& source) {
  double quota = 0, period = 0;
  std::istringstream v2(source.line_of("/sys/fs/cgroup/cpu.max"));
  if (v2 >> quota >> period && period > 0) return quota / period;
  std::istringstream v1(source.line_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  std::istringstream v1_period(source.line_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (v1 >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return {};
}

Json read_sockets(const FactSource& source) {
  auto sockets = source.each_line_of("/sys/devices/system/cpu", "topology/physical_package_id");
  if (!sockets.empty()) return static_cast<double>(sockets.size());
  for (const std::string& line : source.lines_of("/proc/cpuinfo"))
    if (line.starts_with("physical id")) sockets.insert(line);
  return positive_or_null(static_cast<double>(sockets.size()));
}
/// Those that have cores: others are of a GPU's memory (GH200, GB200) or of a memory expander.
Json read_numa_nodes(const FactSource& source) {
  const std::string folder = "/sys/devices/system/node";
  const auto names = source.names_in(folder);
  return positive_or_null(
      static_cast<double>(std::ranges::count_if(names, [&](const std::string& name) {
        if (!name.starts_with("node")) return false;
        const auto files = source.names_in(folder + "/" + name);
        const bool lists_cores = std::ranges::find(files, "cpulist") != files.end();
        return !lists_cores || !source.line_of(folder + "/" + name + "/cpulist").empty();
      })));
}

Json read_memory(const FactSource& source) {
  const MemoryInfo memory = host_memory(source.root);
  if (memory.total_bytes == 0) return {};
  return {{"total_bytes", memory.total_bytes}, {"available_bytes", memory.free_bytes}};
}
Json read_memory_total(const FactSource& source) {
  return positive_or_null(
      static_cast<int>(proc_bytes(source.root + "/proc/meminfo", "MemTotal:") / 0x1p30 + 0.5));
}
Json read_swap(const FactSource& source) {
  const double total = proc_bytes(source.root + "/proc/meminfo", "SwapTotal:", -1);
  const double free = proc_bytes(source.root + "/proc/meminfo", "SwapFree:", -1);
  if (total < 0 || free < 0) return {};
  return {{"total_bytes", total}, {"used_bytes", total - free}};
}

Json read_governor(const FactSource& source) {
  return text_or_null(fmt::format(
      "{}",
      fmt::join(source.each_line_of("/sys/devices/system/cpu", "cpufreq/scaling_governor"), ", ")));
}
Json read_numa_balancing(const FactSource& source) {
  const std::string value = source.line_of("/proc/sys/kernel/numa_balancing");
  return value.empty() ? Json() : Json(value != "0");
}

/// "1234 (name)" of the processes in uninterruptible sleep.
std::set<std::string> sleeping(const FactSource& source) {
  std::set<std::string> found;
  for (const std::string& name : source.names_in("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = source.line_of("/proc/" + name + "/stat");
    const auto end = stat.rfind(')');
    if (end != std::string::npos && stat.substr(end + 1, 2) == " D")
      found.insert(stat.substr(0, end + 1));
  }
  return found;
}
/// Those that sleep so twice: a short one is every write to a disk.
Json read_blocked(const FactSource& source) {
  if (source.names_in("/proc").empty()) return {};
  const auto before = sleeping(source);
  if (before.empty()) return Json::array();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  Json blocked = Json::array();
  for (const std::string& process : sleeping(source))
    if (before.contains(process)) blocked.push_back(process);
  return blocked;
}

}  // namespace

Json read_container(const FactSource& source) {
  if (!source.names_in("/.singularity.d").empty() || source.variable("APPTAINER_CONTAINER"))
    return "apptainer";
  if (source.variable("KUBERNETES_SERVICE_HOST")) return "kubernetes";
  const auto top = source.names_in("/");
  if (std::ranges::find(top, ".dockerenv") != top.end()) return "docker";
  const auto run = source.names_in("/run");
  if (std::ranges::find(run, ".containerenv") != run.end()) return "podman";
  if (source.variable("ENROOT_ROOTFS")) return "enroot";
  return "none seen";
}

namespace {

// Libraries built against and loaded, variables, and what the kernel reported.

/// "name" -> what is loaded now, "name_built" -> what this program was built against.
Json read_libraries(const FactSource&) {
  std::string mpi = MpiSession::library_version();
  if (const auto v = mpi.find(" v"); v != std::string::npos)
    mpi.erase(v + 1, 1);  // Open MPI v4.1.4
  Json versions{{"mpi", mpi}, {"mpi_built", MpiSession::build_version()}};
  for (const BackendKind kind : {BackendKind::gpu, BackendKind::cpu})
    for (const LibraryVersion& library : library_versions(kind, true)) {
      versions[library.name] = library.running;
      versions[library.name + "_built"] = library.built;
    }
  return versions;
}

Json read_kernel_messages(const FactSource& source) {
  const auto log = read_kernel_log(source.root + "/dev/kmsg", uptime_s(source));
  return log ? Json(*log) : Json();
}

}  // namespace

std::vector<Fact> all_facts() {
  std::vector<Fact> all{
      {"os", true,
       [](auto& at) { return text_or_null(value_in(at, "/etc/os-release", "PRETTY_NAME", '=')); }},
      {"kernel", true, text_in("/proc/sys/kernel/osrelease")},
      {"processor", true, [](auto& at) { return text_or_null(processor_model(at.root)); }},
      {"sockets", true, read_sockets},
      {"numa_nodes", true, read_numa_nodes},
      {"cores_online", true, read_cores_online},
      {kCoresAllowed, false, read_cores_allowed},
      {"cpu_quota", true, read_cpu_quota},
      {"memory", false, read_memory},
      {"memory_gib", false, read_memory_total},
      {"swap", false, read_swap},
      {"memlock", true, limit("Max locked memory")},
      {"stack", true, limit("Max stack size")},
      {"open_files", true, limit("Max open files")},
      {"governor", true, read_governor},
      {"clocksource", true,
       text_in("/sys/devices/system/clocksource/clocksource0/current_clocksource")},
      {"numa_balancing", true, read_numa_balancing},
      {"blocked_processes", false, read_blocked},
      {"container", true, read_container},
      {"shm", false, read_shm},
      {"tmp", false, space("/tmp")},
      {"current_folder", false, [](const FactSource&) { return space_at("."); }}};
  std::ranges::move(device_facts(), std::back_inserter(all));
  const std::vector<Fact> software{
      {"revision", true, [](const FactSource&) { return Json(git_revision()); }},
      {"libraries", true, read_libraries},
      {"cuda_variables", false,
       variables({"CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_TF32_OVERRIDE"})},
      // What Slurm gave this job on this node.
      {"slurm", false,
       variables(
           {"SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_CPUS_PER_TASK"})},
      {kKernelLogFact, false, read_kernel_messages}};
  std::ranges::copy(software, std::back_inserter(all));
  std::ranges::move(nccl_facts(), std::back_inserter(all));
  return all;
}

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
