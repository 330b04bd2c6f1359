#include "launch/node/health/rules/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/statistics.hpp"

namespace shakedown::node {
namespace {

/// Whether a list, of GPUs or of ports, has anything; what is not known may have.
bool may_have(const Json& facts, const char* list) {
  const Json& found = fact_of(facts, list);
  return found.is_null() || !found.empty();
}
bool may_have_gpus(const Json& facts) { return may_have(facts, "gpus_on_bus"); }

}  // namespace

const Json& fact_of(const Json& facts, const char* name) {
  static const Json absent;
  const auto found = facts.find(name);
  return found == facts.end() ? absent : *found;
}

Judgements HostRule::judge(const Json& facts) const {
  if (of_gpus && !may_have_gpus(facts)) return not_applicable(kNoGpuOnBus);
  const Json& known = fact == kAllFacts ? facts : fact_of(facts, fact);
  return known.is_null() ? not_known(absent, action) : judge_fact(known, facts);
}

std::vector<Finding> judge_host(const std::string& host, const Json& facts, double xid_window_h) {
  std::vector<Finding> findings;
  for (const HostRule& rule : host_rules(xid_window_h))
    for (const Judgement& judgement : rule.judge(facts))
      findings.push_back(finding_of(rule.name, judgement, Scope::node, host, host));
  return findings;
}

namespace {

Judgements judge_host_stalls(const Json&, const Json& facts) {
  Judgements all;
  for (const Json& name : fact_of(facts, "stalled"))
    all.push_back(failure(Class::infrastructure,
                          fmt::format("reading {} does not return", name.get<std::string>()),
                          "inspect the file systems of the node and their servers; reboot"));
  if (all.empty()) all.push_back(passed("every fact of the host was read in time"));
  return all;
}

// Cores, memory, limits, and settings of the kernel.

constexpr double kMiB = 0x1p20, kGiB = 0x1p30;

/// The cores that this process may use, as the kernel has them: srun does not inherit
/// --cpus-per-task, and a rank may find itself on one core.
Judgement judge_affinity(const Json& allowed, const Json& facts) {
  const Json& online = fact_of(facts, "cores_online");
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
    return warning(Class::config, fmt::format("{}, SLURM_CPUS_PER_TASK is {}", cause, requested),
                   "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun");
  if (cores == 1 && online > 1)
    return warning(Class::config, cause, "bind ranks to more cores: launch/mpi does");
  const Json& quota = fact_of(facts, "cpu_quota");
  if (!quota.is_null() && quota < cores)
    return warning(Class::config,
                   fmt::format("{}, but its control group has the CPU time of {:.1f}", cause,
                               quota.get<double>()),
                   "raise the CPU limit of the container or job");
  return passed(cause);
}

/// Which machine this is, for the reader; nodes are compared elsewhere.
Judgements judge_system(const Json&, const Json& facts) {
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
  Judgements all;
  if (!known.empty()) all.push_back(passed(fmt::format("{}", fmt::join(known, ", "))));
  if (!missing.empty())
    all.push_back(not_known(fmt::format("not readable: {}", fmt::join(missing, ", "))));
  return all;
}

Judgement judge_memory(const Json& memory, const Json&) {
  const double available = memory.at("available_bytes"), total = memory.at("total_bytes");
  const std::string cause =
      fmt::format("{:.0f} of {:.0f} GiB available", available / kGiB, total / kGiB);
  if (available < 0.1 * total)
    return warning(Class::environment, cause, "end what uses the memory, or request more");
  return passed(available >= 0.5 * total ? "at least half of the memory is available" : cause);
}

Judgement judge_swap(const Json& swap, const Json&) {
  const double used = swap.at("used_bytes");
  if (used <= kGiB) return passed("swap is not in use");
  return warning(Class::environment, fmt::format("{:.1f} GiB of swap in use", used / kGiB),
                 "end what uses the memory");
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

Judgements judge_limits(const Json&, const Json& facts) {
  Judgements all;
  const Json& ports = fact_of(facts, "infiniband");
  const bool has_infiniband = ports.is_array() && !ports.empty();
  for (const Limit& limit : kLimits) {
    const Json& value = fact_of(facts, limit.fact);
    if (value.is_null())
      all.push_back(not_known(fmt::format("{}: not reported", limit.what)));
    else if (value.is_string())
      all.push_back(passed(fmt::format("{}: unlimited", limit.what)));
    else {
      const double number = value;
      const std::string cause = limit.of_files
                                    ? fmt::format("{}: {:.0f}", limit.what, number)
                                    : fmt::format("{}: {:.0f} MiB", limit.what, number / kMiB);
      // Only InfiniBand registers memory without bound.
      const double least = limit.least < INFINITY || has_infiniband ? limit.least : 64 * 1024;
      all.push_back(number < least ? warning(Class::config, cause, limit.action) : passed(cause));
    }
  }
  return all;
}

Judgement judge_governor(const Json& governor, const Json&) {
  if (governor == "performance") return passed("governor performance");
  return warning(Class::config, "frequency governor " + governor.get<std::string>(),
                 "reconfigure: cpupower frequency-set -g performance");
}

Judgement judge_clocksource(const Json& source, const Json&) {
  const auto text = source.get<std::string>();
  for (const char* slow : {"hpet", "acpi_pm", "jiffies", "refined-jiffies"})
    if (text == slow)
      return warning(Class::config, fmt::format("clock source {}: reading the time is slow", text),
                     "reboot with tsc=reliable; see why the kernel gave the TSC up");
  return passed("clock source " + text);
}

Judgement judge_numa_balancing(const Json& on, const Json& facts) {
  if (on == true && fact_of(facts, "numa_nodes") != 1)
    return warning(Class::config, "NUMA balancing moves pages while ranks work",
                   "reconfigure: sysctl kernel.numa_balancing=0");
  return passed("NUMA balancing does not move pages");
}

Judgement judge_blocked(const Json& blocked, const Json&) {
  if (blocked.empty()) return passed("no process hangs in the kernel");
  std::vector<std::string> names;
  for (const Json& process : blocked) names.push_back(process);
  names.resize(std::min<std::size_t>(names.size(), 5));
  return warning(Class::environment,
                 fmt::format("{} processes in uninterruptible sleep: {}", blocked.size(),
                             fmt::join(names, ", ")),
                 "inspect file servers and drivers that they wait for; reboot if it stays");
}

Judgement judge_container(const Json& container, const Json&) {
  return passed(fmt::format("container: {}", container.get<std::string>()));
}

// Space and inodes of the file systems that programs write to.

// NCCL and MPI of eight ranks need some; loaders in other frameworks 8 GB.
constexpr double kLeastShared = 64 * kMiB, kUsualShared = 8e9;
constexpr double kLeastFree = 16 * kMiB, kUsualFree = kGiB;
constexpr double kLowInodes = 0.01;  // share that is free

Judgement judge_shm(const Json& shm, const Json& facts) {
  const double total = shm.at("total_bytes"), free = shm.at("free_bytes");
  const std::string cause =
      fmt::format("/dev/shm: {:.1f} of {:.1f} GiB free", free / kGiB, total / kGiB);
  const Json& container = fact_of(facts, "container");
  const char* larger = container.is_null() || container == "none seen"
                           ? "mount -o remount,size=8g /dev/shm"
                           : "docker run --ipc=host (or --shm-size=8g)";
  const char* tidy = "remove what is left over in /dev/shm";
  if (free < kLeastShared)
    return failure(Class::config, cause + ", ranks of a node cannot share memory",
                   total < kUsualShared ? larger : tidy);
  if (!shm.value("writable", true))
    return failure(Class::config, "/dev/shm: this user cannot make files there",
                   "mount -o remount,rw,mode=1777 /dev/shm");
  if (const std::string type = shm.value("file_system", "tmpfs"); type != "tmpfs")
    return warning(Class::config,
                   fmt::format("/dev/shm is {}, no tmpfs, and as slow as that", type),
                   "mount -t tmpfs -o size=8g,mode=1777 tmpfs /dev/shm");
  if (total < kUsualShared) return warning(Class::config, cause, larger);
  if (free < 0.1 * total) return warning(Class::environment, cause, tidy);
  if (const int files = shm.value("left_over", 0); files > 0)
    return warning(Class::environment,
                   fmt::format("/dev/shm: {} files of NCCL or Open MPI that no process seen here "
                               "has open",
                               files),
                   "if no job runs: rm /dev/shm/{nccl-,vader_segment,sm_segment}*");
  for (const char* key : {"writable", "file_system", "left_over"})
    if (!shm.contains(key)) return not_known(fmt::format("/dev/shm: {} could not be read", key));
  return passed("/dev/shm: a tmpfs of at least 8 GB, at least 10 % of it free");
}

Judgement judge_space(const Json& space, const std::string& where) {
  const double free = space.at("free_bytes");
  const double inodes = space.at("inodes"), free_inodes = space.at("free_inodes");
  const auto found = [&](bool fails, const std::string& what) {
    return (fails ? failure : warning)(Class::environment, fmt::format("{}: {}", where, what),
                                       "remove files from " + where);
  };
  const bool lacks_inodes = inodes > 0 && free_inodes == 0;
  if (free < kLeastFree || (free < kUsualFree && !lacks_inodes))
    return found(free < kLeastFree, fmt::format("{:.0f} MiB free", free / kMiB));
  if (lacks_inodes) return found(true, "no inode is free");
  if (inodes > 0 && free_inodes < kLowInodes * inodes)
    return found(false, fmt::format("{:.1f} % of inodes free", 100 * free_inodes / inodes));
  return passed(where + ": at least 1 GiB free, and inodes");
}

// IOMMU and PCIe access control, InfiniBand, NICs and ports.

constexpr double kManySymbolErrors = 100;

Judgement judge_acs(const Json& acs, const Json&) {
  const int redirecting = acs.at("redirecting");
  if (redirecting == 0) return passed("PCIe bridges do not redirect peer-to-peer requests");
  return warning(
      Class::config,
      fmt::format("{} PCIe bridges send peer-to-peer requests through the host (ACS)", redirecting),
      "reconfigure: turn ACS off in the BIOS, or with setpci on each bridge");
}

Judgement judge_iommu(const Json& types, const Json&) {
  std::vector<std::string> translating;  // "DMA", "DMA-FQ"
  for (const Json& type : types)
    if (type != "identity") translating.push_back(type);
  if (translating.empty()) return passed("no IOMMU translates for GPUs");
  return warning(Class::config,
                 fmt::format("an IOMMU translates for GPUs ({}): copies between them may be slow",
                             fmt::join(translating, ", ")),
                 "reconfigure: boot with iommu=pt, on ARM with iommu.passthrough=1");
}

/// The open driver passes GPU memory as dma-buf since Linux 5.12; NCCL uses that before the module.
bool has_dma_buf(const Json& facts) {
  const Json& kernel = fact_of(facts, "kernel");
  int major = 0, minor = 0;
  if (kernel.is_string()) std::sscanf(kernel.get<std::string>().c_str(), "%d.%d", &major, &minor);
  const Json& variables = fact_of(facts, "nccl_variables");
  const bool off = variables.is_object() && variables.value("NCCL_DMABUF_ENABLE", "") == "0";
  return fact_of(facts, "open_driver") == true && !off &&
         std::pair(major, minor) >= std::pair(5, 12);
}

Judgement judge_peermem(const Json&, const Json& facts) {
  const Json& ports = fact_of(facts, "infiniband");
  const auto is_efa = [](const Json& port) { return port.contains("efa"); };
  if (!may_have_gpus(facts) || (ports.is_array() && std::ranges::all_of(ports, is_efa)))
    return not_applicable("no GPU with InfiniBand");  // EFA's own module maps GPU memory
  const Json& modules = fact_of(facts, "modules");
  if (modules.is_null()) return not_known("the kernel's modules are not readable");
  for (const Json& module : modules)
    if (module == "nvidia_peermem" || module == "nv_peer_mem")
      return passed("GPUDirect RDMA: " + module.get<std::string>());
  if (has_dma_buf(facts)) return passed("GPUDirect RDMA: dma-buf of the open driver");
  return warning(Class::config, "nvidia_peermem is not loaded: GPUDirect RDMA needs it or dma-buf",
                 "reconfigure: modprobe nvidia_peermem");
}

/// Ports of which one may be compared with another: of one board, or of one firmware where the
/// board is not known. A port for storage or management is on another.
std::string kind_of(const Json& port) {
  return port.value("link_layer", "") + " " + port.value("board", port.value("firmware", ""));
}

struct PortKind {
  double rate_gbits = 0;                              // the highest
  std::map<std::string, std::vector<double>> counts;  // of each port, by counter
  std::vector<std::string> ecn;
};

/// What a port counts in the traffic of others, too: next to the others of its kind.
struct PortCounter {
  const char *key, *cause, *action;
};
constexpr PortCounter kPortCounters[] = {
    {"retransmissions", "{} sent {:.0f} packets again",
     ": cable, switch port, and PFC and ECN of both"},
    {"pauses_sent", "{} sent {:.0f} pause frames: its host takes in data more slowly than others",
     ": PCIe link, NUMA node and firmware of the adapter"},
    {"pauses_received", "{} was paused {:.0f} times by its switch",
     ": what shares its switch, and PFC and ECN of both"}};

Judgements judge_infiniband(const Json& ports, const Json&) {
  if (ports.empty()) return not_applicable("no InfiniBand");
  std::map<std::string, PortKind> kinds;
  for (const Json& port : ports) {
    PortKind& kind = kinds[kind_of(port)];
    kind.rate_gbits = std::max(kind.rate_gbits, port.value("rate_gbits", 0.0));
    for (const PortCounter& counter : kPortCounters)
      if (port.contains(counter.key)) kind.counts[counter.key].push_back(port.at(counter.key));
    if (port.contains("ecn")) kind.ecn.push_back(port.at("ecn"));
  }
  Judgements all;
  for (const Json& port : ports) {
    const auto name = port.at("port").get<std::string>(), state = port.value("state", "");
    const auto warn = [&](const std::string& cause, const char* where) {
      all.push_back(warning(Class::infrastructure, cause, "inspect link " + name + where));
    };
    constexpr const char* kCable = ": cable and switch port";
    if (state.empty())
      all.push_back(not_known(name + ": state is not reported"));
    else if (state != "ACTIVE")
      warn(fmt::format("{} is {}", name, state), "; nothing to do if the port is unused by design");
    for (const auto& [counter, most] :
         {std::pair("link_downed", 0.0), std::pair("symbol_errors", kManySymbolErrors)})
      if (!port.contains(counter) && !port.contains("efa"))  // which has no such counter
        all.push_back(not_known(fmt::format("{}: {} is not reported", name, counter)));
      else if (const double count = port.value(counter, 0.0); count > most)
        warn(fmt::format("{}: {} {:.0f} since its counters were reset", name, counter, count),
             kCable);
    PortKind& kind = kinds.at(kind_of(port));
    const double rate = port.value("rate_gbits", 0.0), fastest = kind.rate_gbits;
    if (state == "ACTIVE" && rate < fastest)
      warn(fmt::format("{} at {:.0f} Gbit/s, the fastest of its kind at {:.0f}", name, rate,
                       fastest),
           kCable);
    for (const PortCounter& counter : kPortCounters) {
      const double count = port.value(counter.key, 0.0);
      const std::vector<double>& peers = kind.counts[counter.key];
      const double usual = peers.size() < 3 ? count : median_of(peers);
      if (count > std::max(kManyErrors, kManyTimesPeers * usual))
        warn(fmt::format("{}, median of its kind {:.0f}",
                         fmt::format(fmt::runtime(counter.cause), name, count), usual),
             counter.action);
    }
    const auto most = majority_of(kind.ecn);
    if (most && port.value("ecn", *most) != *most)
      all.push_back(warning(Class::config,
                            fmt::format("{}: ECN is on for priorities {}, on most of its kind {}",
                                        name, port.at("ecn").get<std::string>(), *most),
                            "reconfigure: mlnx_qos and cma_roce_tos as on the others"));
  }
  if (all.empty()) all.push_back(passed(fmt::format("{} ports active", ports.size())));
  return all;
}

Judgements judge_efa(const Json& efa, const Json&) {
  if (efa.at("devices") == 0) return not_applicable("no EFA");
  Judgements all;
  for (const Json& reason : efa.at("unused"))
    all.push_back(warning(Class::config, reason.get<std::string>() + ": between nodes TCP is left",
                          "install aws-ofi-nccl, FI_PROVIDER=efa; NCCL_NET='AWS Libfabric' makes "
                          "NCCL fail rather than use TCP"));
  if (all.empty())
    all.push_back(passed(fmt::format("{} EFA devices", efa.at("devices").get<int>())));
  return all;
}

/// Whether as many NICs are near a GPU as near the others.
Judgements judge_rails(const Json& rails, const Json&) {
  std::vector<std::size_t> counts;
  for (const Json& near : rails) counts.push_back(near.size());
  if (std::ranges::count(counts, 0u) == std::ssize(counts))
    return not_applicable("no GPU shares a PCIe switch with a NIC");
  const auto most = majority_of(counts);
  Judgements all;
  for (const auto& [gpu, near] : rails.items())
    if (near.size() < most.value_or(0))
      all.push_back(warning(Class::hardware,
                            fmt::format("GPU {}: NICs on its PCIe switch: {}, of most GPUs {}", gpu,
                                        near.size(), *most),
                            "inspect the adapter next to this GPU (lspci -tv, dmesg); reseat it"));
  if (all.empty())
    all.push_back(most ? passed(fmt::format("NICs on the PCIe switch of each GPU: {}", *most))
                       : not_known("how many NICs should be near a GPU is not known"));
  return all;
}

Judgement judge_nics(const Json& nics, const Json&) {
  std::vector<std::string> up;
  bool all_known = true;
  for (const Json& nic : nics) {
    if (nic.value("state", "") != "up") continue;
    const std::string name = nic.at("nic");
    const bool known = nic.contains("speed_mbits");
    all_known = all_known && known;
    up.push_back(
        known ? fmt::format("{} {:.0f} Gbit/s", name, nic.at("speed_mbits").get<double>() / 1000)
              : name + " at unknown speed");
  }
  if (up.empty()) return not_known("no NIC with hardware is up here");
  const std::string text = fmt::format("{}", fmt::join(up, ", "));
  return all_known ? passed(text) : not_known(text);
}

Judgement judge_ports(const Json& ports, const Json& facts) {
  if (!ports.contains("in_use")) return not_known("TCP ports are not readable");
  const int in_use = ports.at("in_use"), range = ports.at("range");
  const Json& master = fact_of(facts, "master_port");
  if (!master.is_null() && master.at("in_use") == true)
    return warning(Class::environment,
                   fmt::format("MASTER_PORT {} is in use", master.at("port").get<std::string>()),
                   "end the earlier run, or choose another port");
  if (in_use > 0.8 * range)
    return warning(Class::environment, fmt::format("{} of {} TCP ports in use", in_use, range),
                   "end what holds them; widen net.ipv4.ip_local_port_range");
  return passed("TCP ports are free");
}

}  // namespace

std::vector<HostRule> host_rules(double xid_window_h) {
  const auto space = [](const char* where) {
    return [where](const Json& fact, const Json&) { return judge_space(fact, where); };
  };
  std::vector<HostRule> all{
      {"host-stall", "files of the host that cannot be read", kAllFacts, "", judge_host_stalls},
      {"system", "operating system, kernel, processor, memory", kAllFacts, "", judge_system},
      {"cpu-affinity", "cores that the process may really use", "cores_allowed",
       "the cores that this process may use are not reported", judge_affinity},
      {"host-memory", "memory that is available", "memory", "memory is not reported", judge_memory},
      {"swap", "swap in use", "swap", "swap is not reported", judge_swap},
      {"limits", "locked memory, stack, open files", kAllFacts, "", judge_limits},
      {"governor", "frequency governor of the cores", "governor",
       "no frequency governor is visible: a virtual machine, or the firmware's", judge_governor},
      {"clocksource", "where the kernel reads the time", "clocksource",
       "the clock source is not reported", judge_clocksource},
      {"numa-balancing", "whether the kernel moves pages between NUMA nodes", "numa_balancing",
       "NUMA balancing is not reported", judge_numa_balancing},
      {"blocked-processes", "processes in uninterruptible sleep", "blocked_processes",
       "processes are not visible", judge_blocked},
      {"container", "container that this runs in", "container",
       "whether this is a container is not known", judge_container},
      {"shared-memory", "/dev/shm: size, rights, what is free and what is left over", "shm",
       "/dev/shm cannot be read", judge_shm},
      {"tmp", "/tmp: space and inodes", "tmp", "/tmp cannot be read", space("/tmp")},
      {"current-folder", "the current folder: space and inodes", "current_folder",
       "the current folder cannot be read", space("the current folder")},
      {"acs", "PCIe access control between peers", "acs", "only root can read it", judge_acs, true,
       "run as root"},
      {"iommu", "IOMMU between GPUs", "iommu",
       "how the IOMMU translates for the GPUs is not readable", judge_iommu, true},
      {"peermem", "module for GPUDirect RDMA", kAllFacts, "", judge_peermem},
      {"infiniband", "ports: state, rate, link-downed and symbol errors, retransmissions, PFC, ECN",
       "infiniband", "InfiniBand devices are not readable", judge_infiniband},
      {"efa", "EFA: plugin and provider that NCCL needs for it", "efa", "EFA is not readable",
       judge_efa},
      {"rails", "NICs on the PCIe switch of each GPU", "rails", "PCI devices are not readable",
       judge_rails, true},
      {"nics", "NICs that are up", "nics", "NICs are not readable", judge_nics},
      {"tcp-ports", "TCP ports that are free", "ports", "TCP ports are not readable", judge_ports}};
  std::ranges::move(software_rules(xid_window_h), std::back_inserter(all));
  return all;
}

}  // namespace shakedown::node
