#include "launch/node/health/rules/host_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace shakedown::node {
namespace {

std::vector<Judgement> judge_host_stalls(const Json& facts) {
  const Json& stalled = fact_of(facts, "stalled");
  if (stalled.is_null()) return {passed("every fact of the host was read in time")};
  std::vector<Judgement> all;
  for (const Json& name : stalled)
    all.push_back(failure(Class::infrastructure,
                          fmt::format("reading {} does not return", name.get<std::string>()),
                          "inspect the file systems of the node and their servers; reboot"));
  return all;
}

}  // namespace

const Json& fact_of(const Json& facts, const char* name) {
  static const Json absent;
  const auto found = facts.find(name);
  return found == facts.end() ? absent : *found;
}

std::vector<HostRule> host_rules(double xid_window_h) {
  std::vector<HostRule> all{
      {"host-stall", "files of the host that cannot be read", judge_host_stalls}};
  for (const auto& group : {system_rules(), storage_rules(), network_rules(), software_rules()})
    all.insert(all.end(), group.begin(), group.end());
  all.push_back(kernel_log_rule(xid_window_h));
  return all;
}

std::vector<Finding> judge_host(const std::string& host, const Json& facts, double xid_window_h) {
  std::vector<Finding> findings;
  for (const HostRule& rule : host_rules(xid_window_h))
    for (const Judgement& judgement : rule.judge(facts))
      findings.push_back(finding_of(rule.name, judgement, Scope::node, host, host));
  return findings;
}

// Space and inodes of the file systems that programs write to.

namespace {

constexpr double kMiB = 0x1p20, kGiB = 0x1p30;
// NCCL and MPI of eight ranks need some; loaders in other frameworks 8 GB.
constexpr double kLeastShared = 64 * kMiB, kUsualShared = 8e9;
constexpr double kLeastFree = 16 * kMiB, kUsualFree = kGiB;
constexpr double kLowInodes = 0.01;  // share that is free

std::vector<Judgement> judge_shm(const Json& facts) {
  const Json& shm = fact_of(facts, "shm");
  if (shm.is_null()) return {not_known("/dev/shm cannot be read")};
  const double total = shm.at("total_bytes"), free = shm.at("free_bytes");
  const std::string cause =
      fmt::format("/dev/shm: {:.1f} of {:.1f} GiB free", free / kGiB, total / kGiB);
  const Json& container = fact_of(facts, "container");
  const char* larger = container.is_null() || container == "none seen"
                           ? "mount -o remount,size=8g /dev/shm"
                           : "docker run --ipc=host (or --shm-size=8g)";
  if (free < kLeastShared)
    return {failure(Class::config, cause + ", ranks of a node cannot share memory",
                    total < kUsualShared ? larger : "remove what is left over in /dev/shm")};
  if (total < kUsualShared) return {warning(Class::config, cause, larger)};
  if (free < 0.1 * total)
    return {warning(Class::environment, cause, "remove what is left over in /dev/shm")};
  return {passed("/dev/shm: at least 8 GB, at least 10 % of it free")};
}

std::vector<Judgement> judge_space(const Json& facts, const char* fact, const std::string& where) {
  const Json& space = fact_of(facts, fact);
  if (space.is_null()) return {not_known(where + " cannot be read")};
  const double free = space.at("free_bytes");
  const double inodes = space.at("inodes"), free_inodes = space.at("free_inodes");
  const std::string action = "remove files from " + where;
  if (free < kLeastFree)
    return {failure(Class::environment, fmt::format("{}: {:.0f} MiB free", where, free / kMiB),
                    action)};
  if (inodes > 0 && free_inodes == 0)
    return {failure(Class::environment, where + ": no inode is free", action)};
  if (free < kUsualFree)
    return {warning(Class::environment, fmt::format("{}: {:.0f} MiB free", where, free / kMiB),
                    action)};
  if (inodes > 0 && free_inodes < kLowInodes * inodes)
    return {warning(Class::environment,
                    fmt::format("{}: {:.1f} % of inodes free", where, 100 * free_inodes / inodes),
                    action)};
  return {passed(where + ": at least 1 GiB free, and inodes")};
}

std::vector<Judgement> judge_tmp(const Json& facts) { return judge_space(facts, "tmp", "/tmp"); }
std::vector<Judgement> judge_current(const Json& facts) {
  return judge_space(facts, "current_folder", "the current folder");
}

}  // namespace

std::vector<HostRule> storage_rules() {
  return {{"shared-memory", "/dev/shm: size and what is free", judge_shm},
          {"tmp", "/tmp: space and inodes", judge_tmp},
          {"current-folder", "the current folder: space and inodes", judge_current}};
}

// Cores, memory, limits, and settings of the kernel.

namespace {

/// The cores that this process may use, as the kernel has them: srun does not inherit
/// --cpus-per-task, and a rank may find itself on one core.
std::vector<Judgement> judge_affinity(const Json& facts) {
  const Json& allowed = fact_of(facts, "cores_allowed");
  const Json& online = fact_of(facts, "cores_online");
  if (allowed.is_null()) return {not_known("the cores that this process may use are not reported")};
  const int cores = allowed.at("cores");
  const std::string cause =
      fmt::format("a process may use {} of {} cores ({})", cores,
                  online.is_null() ? "an unknown number of" : std::to_string(online.get<int>()),
                  allowed.at("list").get<std::string>());
  const Json& slurm = fact_of(facts, "slurm");
  const int requested = slurm.contains("SLURM_CPUS_PER_TASK")
                            ? std::atoi(slurm.at("SLURM_CPUS_PER_TASK").get<std::string>().c_str())
                            : 0;
  if (cores < requested)
    return {warning(Class::config, fmt::format("{}, SLURM_CPUS_PER_TASK is {}", cause, requested),
                    "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun")};
  if (cores == 1 && online > 1)
    return {warning(Class::config, cause, "bind ranks to more cores: launch/mpi does")};
  const Json& quota = fact_of(facts, "cpu_quota");
  if (!quota.is_null() && quota < cores)
    return {warning(Class::config,
                    fmt::format("{}, but its control group has the CPU time of {:.1f}", cause,
                                quota.get<double>()),
                    "raise the CPU limit of the container or job")};
  return {passed(cause)};
}

/// Which machine this is, for the reader; nodes are compared elsewhere.
std::vector<Judgement> judge_system(const Json& facts) {
  constexpr std::pair<const char*, const char*> kParts[] = {
      {"os", "operating system"}, {"kernel", "kernel"},         {"processor", "processor"},
      {"sockets", "sockets"},     {"numa_nodes", "NUMA nodes"}, {"memory_gib", "GiB of memory"}};
  std::vector<std::string> known, missing;
  for (const auto& [name, words] : kParts) {
    const Json& value = fact_of(facts, name);
    if (value.is_null())
      missing.emplace_back(words);
    else
      known.push_back(value.is_string() ? value.get<std::string>()
                                        : fmt::format("{}: {:.0f}", words, value.get<double>()));
  }
  std::vector<Judgement> all;
  if (!known.empty()) all.push_back(passed(fmt::format("{}", fmt::join(known, ", "))));
  if (!missing.empty())
    all.push_back(not_known(fmt::format("not readable: {}", fmt::join(missing, ", "))));
  return all;
}

std::vector<Judgement> judge_memory(const Json& facts) {
  const Json& memory = fact_of(facts, "memory");
  if (memory.is_null()) return {not_known("memory is not reported")};
  const double available = memory.at("available_bytes"), total = memory.at("total_bytes");
  const std::string cause =
      fmt::format("{:.0f} of {:.0f} GiB available", available / kGiB, total / kGiB);
  if (available < 0.1 * total)
    return {warning(Class::environment, cause, "end what uses the memory, or request more")};
  return {passed(available >= 0.5 * total ? "at least half of the memory is available" : cause)};
}

std::vector<Judgement> judge_swap(const Json& facts) {
  const Json& swap = fact_of(facts, "swap");
  if (swap.is_null()) return {not_known("swap is not reported")};
  const double used = swap.at("used_bytes");
  if (used > kGiB)
    return {warning(Class::environment, fmt::format("{:.1f} GiB of swap in use", used / kGiB),
                    "end what uses the memory")};
  return {passed("swap is not in use")};
}

struct Limit {
  const char* fact;
  const char* what;
  double least;  // bytes, or a number of files
  bool of_files;
  const char* action;
};
constexpr std::array<Limit, 3> kLimits{
    {{"memlock", "locked memory (ulimit -l)", INFINITY, false,
      "ulimit -l unlimited; LimitMEMLOCK=infinity for slurmd; docker run --ulimit memlock=-1"},
     {"stack", "stack (ulimit -s)", 8 * kMiB, false, "ulimit -s 65536"},
     {"open_files", "open files (ulimit -n)", 1024, true, "ulimit -n 65536"}}};

std::vector<Judgement> judge_limits(const Json& facts) {
  std::vector<Judgement> all;
  const Json& ports = fact_of(facts, "infiniband");
  const bool has_infiniband = ports.is_array() && !ports.empty();
  for (const Limit& limit : kLimits) {
    const Json& value = fact_of(facts, limit.fact);
    if (value.is_null()) {
      all.push_back(not_known(fmt::format("{}: not reported", limit.what)));
      continue;
    }
    if (value.is_string()) {
      all.push_back(passed(fmt::format("{}: unlimited", limit.what)));
      continue;
    }
    const double number = value;
    const std::string cause = limit.of_files
                                  ? fmt::format("{}: {:.0f}", limit.what, number)
                                  : fmt::format("{}: {:.0f} MiB", limit.what, number / kMiB);
    // Only InfiniBand registers memory without bound.
    const double least = limit.least < INFINITY || has_infiniband ? limit.least : 64 * 1024;
    all.push_back(number < least ? warning(Class::config, cause, limit.action) : passed(cause));
  }
  return all;
}

std::vector<Judgement> judge_governor(const Json& facts) {
  const Json& governor = fact_of(facts, "governor");
  if (governor.is_null())
    return {not_known("no frequency governor is visible: a virtual machine, or the firmware's")};
  const auto text = governor.get<std::string>();
  if (text == "performance") return {passed("governor performance")};
  return {warning(Class::config, "frequency governor " + text,
                  "reconfigure: cpupower frequency-set -g performance")};
}

std::vector<Judgement> judge_clocksource(const Json& facts) {
  const Json& source = fact_of(facts, "clocksource");
  if (source.is_null()) return {not_known("the clock source is not reported")};
  const auto text = source.get<std::string>();
  for (const char* slow : {"hpet", "acpi_pm", "jiffies", "refined-jiffies"})
    if (text == slow)
      return {warning(Class::config, fmt::format("clock source {}: reading the time is slow", text),
                      "reboot with tsc=reliable; see why the kernel gave the TSC up")};
  return {passed("clock source " + text)};
}

std::vector<Judgement> judge_numa_balancing(const Json& facts) {
  const Json& on = fact_of(facts, "numa_balancing");
  if (on.is_null()) return {not_known("NUMA balancing is not reported")};
  if (on == true && fact_of(facts, "numa_nodes") != 1)
    return {warning(Class::config, "NUMA balancing moves pages while ranks work",
                    "reconfigure: sysctl kernel.numa_balancing=0")};
  return {passed("NUMA balancing does not move pages")};
}

std::vector<Judgement> judge_blocked(const Json& facts) {
  const Json& blocked = fact_of(facts, "blocked_processes");
  if (blocked.is_null()) return {not_known("processes are not visible")};
  if (blocked.empty()) return {passed("no process hangs in the kernel")};
  std::vector<std::string> names;
  for (const Json& process : blocked) names.push_back(process);
  names.resize(std::min<std::size_t>(names.size(), 5));
  return {warning(Class::environment,
                  fmt::format("{} processes in uninterruptible sleep: {}", blocked.size(),
                              fmt::join(names, ", ")),
                  "inspect file servers and drivers that they wait for; reboot if it stays")};
}

std::vector<Judgement> judge_container(const Json& facts) {
  const Json& container = fact_of(facts, "container");
  if (container.is_null()) return {not_known("whether this is a container is not known")};
  return {passed(fmt::format("container: {}", container.get<std::string>()))};
}

}  // namespace

std::vector<HostRule> system_rules() {
  return {
      {"system", "operating system, kernel, processor, memory", judge_system},
      {"cpu-affinity", "cores that the process may really use", judge_affinity},
      {"host-memory", "memory that is available", judge_memory},
      {"swap", "swap in use", judge_swap},
      {"limits", "locked memory, stack, open files", judge_limits},
      {"governor", "frequency governor of the cores", judge_governor},
      {"clocksource", "where the kernel reads the time", judge_clocksource},
      {"numa-balancing", "whether the kernel moves pages between NUMA nodes", judge_numa_balancing},
      {"blocked-processes", "processes in uninterruptible sleep", judge_blocked},
      {"container", "container that this runs in", judge_container}};
}

}  // namespace shakedown::node
