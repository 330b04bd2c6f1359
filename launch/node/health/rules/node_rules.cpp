#include "launch/node/health/rules/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/nvml_library.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kOption = "--expect-gpus";
constexpr const char* kImex = "imex";

/// "h200:8" and "8" are 8.
int number_at_end(const std::string& text) {
  const auto colon = text.rfind(':');
  return std::atoi(text.c_str() + (colon == std::string::npos ? 0 : colon + 1));
}

/// What Slurm gave the job on this node; 0: it does not say.
int gpus_of_slurm(const Json& slurm) {
  if (!slurm.is_object()) return 0;
  if (slurm.contains("SLURM_GPUS_ON_NODE")) return number_at_end(slurm.at("SLURM_GPUS_ON_NODE"));
  if (slurm.contains("SLURM_JOB_GPUS"))
    return static_cast<int>(numbers_in(slurm.at("SLURM_JOB_GPUS")).size());
  if (slurm.contains("SLURM_GPUS_PER_NODE")) return number_at_end(slurm.at("SLURM_GPUS_PER_NODE"));
  return 0;
}

/// GPUs that a node should have, and who says so.
struct ExpectedGpus {
  int count = 0;
  std::string by;  // "--expect-gpus"
};
using MaybeExpected = std::optional<ExpectedGpus>;

MaybeExpected expected_on(const NodeReport& report, const std::vector<NodeReport>& reports,
                          const Expected& expected) {
  if (expected.gpus >= 0) return ExpectedGpus{expected.gpus, kOption};
  if (const int slurm = gpus_of_slurm(fact_of(report.facts, "slurm")); slurm > 0)
    return ExpectedGpus{slurm, "Slurm"};
  std::vector<int> counts;
  for (const NodeReport& other : reports)
    counts.push_back(static_cast<int>(other.gpus.gpus.size()));
  if (const auto most = majority_of(counts); most && *most > 0)
    return ExpectedGpus{*most, "most nodes"};
  // A container sees the whole bus but may have been given some of its GPUs.
  const Json& bus = fact_of(report.facts, "gpus_on_bus");
  if (bus.is_array() && bus.empty() && !report.facts.contains("driver_module"))
    return ExpectedGpus{0, "PCI bus, no driver"};
  if (bus.is_array() && !bus.empty() && fact_of(report.facts, "container") == "none seen")
    return ExpectedGpus{static_cast<int>(bus.size()), "PCI bus"};
  return std::nullopt;
}

/// GPUs of the bus that the driver does not report: the names of what is missing.
std::string missing_on(const NodeReport& report) {
  const Json& bus = fact_of(report.facts, "gpus_on_bus");
  std::vector<std::string> missing;
  for (const Json& device : bus) {
    const std::string id = device;
    const bool reported = std::ranges::any_of(
        report.gpus.gpus, [&](const GpuReading& gpu) { return same_pci_device(gpu.pci_id, id); });
    if (!reported) missing.push_back(id);
  }
  return missing.empty() ? "" : fmt::format("; on the bus only: {}", fmt::join(missing, ", "));
}

constexpr const char* kNoneExpected = "no GPU, none expected";

/// Whether a node has no GPU and should have none: then its driver is of no concern.
bool needs_no_driver(const NodeReport& report, const MaybeExpected& expected) {
  return expected && expected->count == 0 && report.gpus.problem && report.gpus.stalled.empty();
}

Judgement judge_count(const NodeReport& report, const MaybeExpected& expected, const Expected&) {
  const int found = static_cast<int>(report.gpus.gpus.size());
  if (report.gpus.problem && (!expected || !report.gpus.stalled.empty()))
    return not_known("how many GPUs there are is not known");
  if (!expected)
    return not_known(fmt::format("{} GPUs; how many there should be is not known", found),
                     "use --expect-gpus");
  if (expected->count == 0 && found == 0) {
    const std::string none = fmt::format("{} ({})", kNoneExpected, expected->by);
    // Where the option says so it was looked at; else there is nothing to judge.
    return expected->by == kOption ? passed(none) : not_applicable(none);
  }
  const std::string cause =
      fmt::format("{} GPUs, {} expected ({})", found, expected->count, expected->by);
  if (found < expected->count)
    return failure(report.gpus.problem ? Class::software : Class::hardware,
                   cause + missing_on(report),
                   report.gpus.problem ? "load the driver (nvidia-smi, dmesg); reboot"
                                       : "see the kernel's messages; reboot, RMA if it stays away");
  if (found > expected->count && expected->by == kOption)
    return warning(Class::config, cause, "reconfigure: use the node's own number");
  return passed(cause);
}

/// Whether its GPUs are initialized although nobody uses them.
bool stays_open(const NodeReport& report) {
  return report.was_open || fact_of(report.facts, kPersistenceDaemon) == true;
}

/// Why a driver that is loaded shows no GPU. A container that was given none lacks the library, or
/// the devices; other errors are of the driver's installation wherever they come from.
Judgement judge_unusable_driver(const NodeReport& report) {
  const std::string& problem = *report.gpus.problem;
  const auto has = [&](const char* words) { return problem.find(words) != problem.npos; };
  const bool has_library = !has("No such file");
  const bool may_have_none = !has_library || has("Driver Not Loaded") || has("ermission") ||
                             has("Unknown Error") || has("no GPU");
  if (may_have_none && (fact_of(report.facts, "container") != "none seen" || has("no GPU")))
    return warning(Class::config, "a driver is loaded, but no GPU can be seen: " + problem,
                   "docker run --gpus all in a container; else reload the driver or reboot");
  return failure(
      Class::software, "a driver is loaded, but its library cannot be used: " + problem,
      has("mismatch")
          ? "reboot, or reload the driver's modules: they are not of the library's version"
          : "install the driver's libraries again; in a container, those that the "
            "runtime (nvidia-container-toolkit) mounts");
}

/// Calls of the driver that are no GPU's, and why it cannot be asked.
Judgement judge_management(const NodeReport& report, const MaybeExpected& expected,
                           const Expected&) {
  if (needs_no_driver(report, expected)) return not_applicable(kNoneExpected);
  const HostGpus& gpus = report.gpus;
  if (!gpus.stalled.empty()) {
    const std::string calls =
        gpus.problem.value_or(fmt::format("{} did not return", fmt::join(gpus.stalled, ", ")));
    if (gpus.stalled.front() == nvml::kInit && !stays_open(report))
      return judge_slow_opening(calls);
    return failure(Class::hardware, "the management path hangs: " + calls,
                   "drain the node; reboot");
  }
  if (gpus.problem) {
    // Of a module's version the library knows only where there is one.
    const bool has_driver = report.facts.contains("driver_module") ||
                            gpus.problem->find("version mismatch") != std::string::npos;
    if (!has_driver) return not_known("no GPU can be seen: " + *gpus.problem);
    return judge_unusable_driver(report);
  }
  if (!gpus.failed.empty())
    return failure(Class::software, fmt::format("{}", fmt::join(gpus.failed, "; ")),
                   "reload the driver; reboot");
  return passed("the driver answers");
}

Judgement judge_driver(const NodeReport& report, const MaybeExpected& expected,
                       const Expected& given) {
  if (needs_no_driver(report, expected)) return not_applicable(kNoneExpected);
  const Json& module = fact_of(report.facts, "driver_module");
  const Json& libraries = fact_of(report.facts, "libraries");
  const HostGpus& gpus = report.gpus;
  if (!gpus.driver_version) return not_known("the driver's version is not known");
  // NVML refuses to work with another module than its own, which judge_management has: one that
  // answers fits, whatever /proc shows, as in a container whose driver is another's.
  if (!module.is_null() && module != *gpus.driver_version)
    return warning(
        Class::software,
        fmt::format("driver {} is loaded, NVML works and reports {}", module.get<std::string>(),
                    *gpus.driver_version),
        "see which libnvidia-ml.so.1 is found first (ldconfig -p), and what is in its place");
  const std::string built = libraries.is_object() ? libraries.value("cuda_built", "") : "";
  if (!built.empty() && gpus.cuda_driver_version &&
      std::atoi(gpus.cuda_driver_version->c_str()) < std::atoi(built.c_str())) {
    const std::string cause = fmt::format("driver {} supports CUDA {}, Shakedown is built with {}",
                                          *gpus.driver_version, *gpus.cuda_driver_version, built);
    if (given.uses_gpus)
      return failure(Class::software, cause, "update the driver, or build with an older CUDA");
    return not_known(cause + ": this is about Shakedown's build, not the node",  // or its jobs
                     "build Shakedown with a CUDA that the driver supports");
  }
  return passed(fmt::format("driver {}, CUDA {}", *gpus.driver_version,
                            gpus.cuda_driver_version.value_or("unknown")));
}

/// Named before copies between host and GPU are judged, which it encrypts.
Judgement judge_confidential(const NodeReport& report, const MaybeExpected& expected,
                             const Expected&) {
  if (needs_no_driver(report, expected)) return not_applicable(kNoneExpected);
  const Known<bool>& on = report.gpus.confidential_computing;
  if (!on) return not_known("whether confidential computing is on is not reported");
  return passed(*on ? "confidential computing is on: copies between host and GPU are slower"
                    : "confidential computing is off");
}

/// Whether its GPUs are in an NVLink fabric with those of other nodes.
bool is_in_cluster(const NodeReport& report) { return !cluster_of(report).value_or("").empty(); }

Judgement judge_fabric_manager(const NodeReport& report, const MaybeExpected&, const Expected&) {
  const Json& driver = fact_of(report.facts, "driver_module");
  const Json& manager = fact_of(report.facts, "fabric_manager");
  const Json& bus = fact_of(report.facts, "gpus_on_bus");
  if (bus.is_array() && bus.empty()) return not_applicable(kNoGpuOnBus);
  if (is_in_cluster(report)) return not_applicable("the NVLink fabric is managed by its rack");
  if (driver.is_null()) return not_known("the version of the GPU driver's module is not readable");
  if (manager.is_null()) return not_known("the fabric manager's version is not readable here");
  if (manager == driver) return passed("fabric manager of the driver's version");
  return failure(Class::software,
                 fmt::format("fabric manager {}, driver {}: they must be the same",
                             manager.get<std::string>(), driver.get<std::string>()),
                 "install nvidia-fabricmanager of the driver's version and restart it");
}

/// The daemon that lets GPUs of several nodes use one another's memory. Where the scheduler starts
/// it for each job, as Kubernetes' compute domains do, none on an idle node is right.
Judgement judge_imex(const NodeReport& report, const MaybeExpected&, const Expected&) {
  if (!is_in_cluster(report)) return not_applicable("no NVLink fabric between nodes");
  const Json& imex = fact_of(report.facts, "imex");
  if (!imex.contains("daemon")) return not_known("whether nvidia-imex runs is not visible");
  const std::size_t nodes = imex.value("nodes", Json::array()).size();
  if (imex.at("daemon") == true)
    return passed(nodes > 0 ? fmt::format("nvidia-imex runs, for {} nodes", nodes)
                            : "nvidia-imex runs");
  if (nodes == 0) return not_applicable("no IMEX domain is configured");
  return warning(Class::software,
                 fmt::format("nvidia-imex does not run, though {} has {} nodes", kImexNodes, nodes),
                 "systemctl start nvidia-imex; nothing to do if it is started for each job");
}

/// What the daemons say of their domains, each once: a node that is not ready is no fault of those
/// that see it.
std::vector<Finding> judge_imex_domains(const std::vector<NodeReport>& reports) {
  std::map<std::string, std::vector<std::string>> seen_by;
  for (const NodeReport& report : reports) {
    const Json& imex = fact_of(report.facts, "imex");
    if (!imex.is_object()) continue;  // not known: judge_imex says so
    const auto nodes = imex.value("not_ready", std::vector<std::string>{});
    const std::string state = imex.value("domain", "UP");
    if (state != "UP")
      seen_by[fmt::format("IMEX domain {}{}{}", state, nodes.empty() ? "" : ": ", listed(nodes))]
          .push_back(report.host);
  }
  std::vector<Finding> all;
  for (const auto& [cause, hosts] : seen_by)
    all.push_back(finding_of(
        kImex,
        warning(Class::software, fmt::format("{}, by {}", cause, listed(hosts)),
                "start nvidia-imex where it is not ready; see /var/log/nvidia-imex.log there"),
        Scope::job, "node_check"));
  return all;
}

/// Those that see GPUs and host together.
struct NodeRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  Judgement (*judge)(const NodeReport& report, const MaybeExpected& expected,
                     const Expected& given);
};
constexpr NodeRule kNodeRules[] = {
    {"gpu-count", "GPUs that are missing", judge_count},
    {"management", "whether the driver answers at all", judge_management},
    {"driver", "the driver's module, library and CUDA", judge_driver},
    {"confidential", "whether confidential computing is on", judge_confidential},
    {"fabric-manager", "the fabric manager's version, next to the driver's", judge_fabric_manager},
    {kImex, "the daemon of a rack's NVLink fabric, and what it says of the others", judge_imex}};

GpuContext context_of(const GpuReading& gpu, const NodeReport& report,
                      const std::vector<NodeReport>& reports, const Expected& expected) {
  GpuContext context;
  context.expected_mig = expected.mig;
  for (const NodeReport& other : reports)
    for (const GpuReading& peer : other.gpus.gpus) {
      context.all.push_back(&peer);
      if (peer.model == gpu.model) context.peers.push_back(&peer);
    }
  for (const GpuReading& neighbour : report.gpus.gpus) context.node.push_back(&neighbour);
  context.our_pids = report.our_pids;
  context.under_load = std::ranges::find(report.loaded_gpus, gpu.uuid) != report.loaded_gpus.end();
  context.initialized = stays_open(report);
  return context;
}

}  // namespace

std::string list_of_checks() {
  std::string text;
  const auto add = [&](const char* name, const char* what) {
    text += fmt::format("{:18} {}\n", name, what);
  };
  for (const NodeRule& rule : kNodeRules) add(rule.name, rule.what);
  for (const GpuRule& rule : gpu_rules()) add(rule.name, rule.what);
  for (const HostRule& rule : host_rules()) add(rule.name, rule.what);
  add(kNodesAlike, "versions and settings that differ between the nodes");
  add("hung-check", "a passive check that did not end, or an earlier one that has not");
  add("dead-check", "a passive check that died of a signal");
  add("inforom", "checksums of the GPU's inforom; not in a passive check");
  add("rank-numa-node", "whether a rank's cores are of its GPU's NUMA node");
  add("pcie-under-load", "the PCIe link while this program copies to the GPU");
  add("errors-under-load", "errors that were counted while this program ran");
  add("all-reduce", "a sum over all ranks, every element compared");
  return text;
}

std::vector<Finding> judge_nodes(const std::vector<NodeReport>& reports, const Expected& expected) {
  std::vector<Finding> all;
  for (const NodeReport& report : reports) {
    const MaybeExpected gpus = expected_on(report, reports, expected);
    for (const NodeRule& rule : kNodeRules)
      all.push_back(finding_of(rule.name, rule.judge(report, gpus, expected), Scope::node,
                               report.host, report.host));
    for (const GpuReading& gpu : report.gpus.gpus) {
      auto found = judge_gpu(report.host, gpu, context_of(gpu, report, reports, expected));
      std::ranges::move(found, std::back_inserter(all));
    }
    auto of_host = judge_host(report.host, report.facts, expected.xid_window_h);
    std::ranges::move(of_host, std::back_inserter(all));
  }
  for (auto more : {judge_imex_domains(reports), compare_nodes(reports)})
    std::ranges::move(more, std::back_inserter(all));
  return all;
}

// What only a check that is not passive sees, much of it while this program works.

namespace {

const NodeReport* find_node(const std::vector<NodeReport>& reports, const std::string& host) {
  const auto found = std::ranges::find(reports, host, &NodeReport::host);
  return found == reports.end() ? nullptr : &*found;
}

const GpuReading* find_gpu(const std::vector<NodeReport>& reports, const std::string& host,
                           const std::string& uuid) {
  const NodeReport* node = find_node(reports, host);
  if (node == nullptr || uuid.empty()) return nullptr;
  const auto found = std::ranges::find(node->gpus.gpus, uuid, &GpuReading::uuid);
  return found == node->gpus.gpus.end() ? nullptr : &*found;
}

/// Errors that must not grow while this program works.
struct ErrorCount {
  const char *what, *grown;
  Known<std::uint64_t> (*of)(const GpuReading& gpu);
  decltype(failure)* judge;
  const char* action;
};
constexpr ErrorCount kErrors[] = {
    {"ECC errors", "uncorrected ECC errors",
     [](const GpuReading& gpu) { return gpu.volatile_.uncorrected; }, failure,
     "reset GPU; RMA if they come back"},
    {"NVLink errors", "NVLink errors", nvlink_errors, warning,
     "inspect links of this GPU; run again"},
    {"PCIe replays", "PCIe replays", [](const GpuReading& gpu) { return gpu.pcie_replays; },
     warning, "reseat GPU or riser; run again"}};

Judgement judge_growth_of(const GpuReading& before, const GpuReading& after) {
  std::vector<Judgement> found;
  std::vector<const char*> unknown;
  for (const ErrorCount& errors : kErrors) {
    const auto more = grown(errors.of(before), errors.of(after));
    if (!more) unknown.push_back(errors.what);
    if (more.value_or(0) > 0)
      found.push_back(errors.judge(
          Class::hardware, fmt::format("{} new {} while this program ran", *more, errors.grown),
          errors.action));
  }
  const auto slowed_ns = grown(before.power_violation_ns, after.power_violation_ns).value_or(0) +
                         grown(before.thermal_violation_ns, after.thermal_violation_ns).value_or(0);
  if (const auto slowdown = judge_hardware_slowdown(after, true); slowdown && slowed_ns > 0)
    found.push_back(*slowdown);
  found.push_back(unknown.empty()
                      ? passed("no new error while this program ran")
                      : not_known(fmt::format("not reported: {}", fmt::join(unknown, ", "))));
  return worst(found);
}

Judgement judge_under_load(const GpuReading* gpu, const NodeReport* report) {
  if (gpu == nullptr) return not_known("not read under load");
  if (std::ranges::find(report->loaded_gpus, gpu->uuid) == report->loaded_gpus.end())
    return not_known("not under load: no rank of this job copied to it while it was read",
                     "run one rank per GPU");
  return judge_pcie_under_load(*gpu);
}

/// One finding per GPU of the first reading, by what became of it.
template <class Judge>
std::vector<Finding> each_gpu(const std::vector<NodeReport>& before, const char* check,
                              Judge&& judge) {
  std::vector<Finding> findings;
  for (const NodeReport& report : before)
    for (const GpuReading& gpu : report.gpus.gpus)
      findings.push_back(finding_of_gpu(check, judge(report.host, gpu), report.host, gpu));
  return findings;
}

Judgement judge_inforom(const GpuReading& gpu) {
  if (!gpu.inforom_valid) return not_known("the driver does not verify the inforom");
  if (*gpu.inforom_valid) return passed("the inforom's checksums are right");
  return failure(Class::hardware, "the inforom is corrupt: its checksums are wrong",
                 "reset GPU; RMA if it stays");
}

Judgement judge_place(const Json& numa_nodes, const std::string& near) {
  if (near.starts_with(kNotNear))
    return warning(Class::config, "the rank's cores are " + near,
                   "let the rank use cores of its GPU's NUMA node: launch/mpi --bind none");
  if (near == kNumaUnknown && numa_nodes != 1) return not_known("the GPU's NUMA node is unknown");
  return passed("the rank's cores are of its GPU's NUMA node");
}

/// The later reading of the GPUs with the host's facts of the first, for work fills /dev/shm and
/// memory; of the kernel's messages those that are new.
NodeReport continued(const NodeReport& before, const NodeReport& later) {
  NodeReport report = later;
  report.facts = before.facts;
  report.facts.erase(kKernelLogFact);
  if (!later.facts.contains(kKernelLogFact) || !before.facts.contains(kKernelLogFact))
    return report;
  const KernelLog known = read_as<KernelLog>(before.facts.at(kKernelLogFact));
  KernelLog log = read_as<KernelLog>(later.facts.at(kKernelLogFact));
  std::erase_if(log.events,
                [&](const KernelEvent& event) { return event.sequence <= known.last_sequence; });
  report.facts[kKernelLogFact] = log;
  return report;
}

}  // namespace

std::vector<Finding> judge_again(const std::vector<NodeReport>& before,
                                 std::vector<NodeReport> later, const Expected& expected) {
  std::map<std::pair<std::string, std::string>, int> known;  // failures by check and name
  for (const Finding& finding : judge_nodes(before, expected))
    if (finding.outcome == Outcome::fail && finding.check != kKernelLog)
      ++known[{finding.check, finding.verdict.name}];
  for (NodeReport& report : later)
    if (const NodeReport* earlier = find_node(before, report.host)) {
      report = continued(*earlier, report);
      report.was_open = !earlier->gpus.gpus.empty();
    }
  std::vector<Finding> found;
  for (const Finding& finding : judge_nodes(later, expected))
    if (finding.outcome == Outcome::fail && --known[{finding.check, finding.verdict.name}] < 0)
      found.push_back(finding);
  return found;
}

std::vector<Finding> judge_inforoms(const std::vector<NodeReport>& reports) {
  return each_gpu(reports, "inforom",
                  [](const std::string&, const GpuReading& gpu) { return judge_inforom(gpu); });
}

std::vector<Finding> judge_places(const std::vector<NodeReport>& reports,
                                  const std::vector<RankPlace>& ranks) {
  std::vector<Finding> findings;
  for (const RankPlace& rank : ranks) {
    const NodeReport* report = find_node(reports, rank.host);
    const Json numa_nodes = report == nullptr ? Json() : fact_of(report->facts, "numa_nodes");
    findings.push_back(finding_of(
        "rank-numa-node", judge_place(numa_nodes, rank.near), Scope::gpu, rank.gpu, rank.host,
        fmt::format("rank {}", static_cast<std::ptrdiff_t>(&rank - ranks.data()))));
  }
  return findings;
}

std::vector<Finding> judge_load(const std::vector<NodeReport>& before,
                                const std::vector<NodeReport>& under_load,
                                const Expected& expected) {
  auto findings =
      each_gpu(before, "pcie-under-load", [&](const std::string& host, const GpuReading& gpu) {
        return judge_under_load(find_gpu(under_load, host, gpu.uuid), find_node(under_load, host));
      });
  std::set<std::string> slow;  // that rule judges by the load as well
  for (const Finding& finding : findings)
    if (finding.outcome == Outcome::fail) slow.insert(finding.verdict.name);
  for (const Finding& finding : judge_again(before, under_load, expected))
    if (finding.check != kPcieLink || !slow.contains(finding.verdict.name))
      findings.push_back(finding);
  return findings;
}

std::vector<Finding> judge_growth(const std::vector<NodeReport>& before,
                                  const std::vector<NodeReport>& after, const Expected& expected) {
  auto findings =
      each_gpu(before, "errors-under-load", [&](const std::string& host, const GpuReading& gpu) {
        const GpuReading* later = find_gpu(after, host, gpu.uuid);
        if (later != nullptr) return judge_growth_of(gpu, *later);
        if (gpu.uuid.empty()) return not_known("cannot be found again: it has no UUID");
        return failure(Class::hardware, "the driver no longer reports the GPU",
                       "reboot; RMA if it comes back");
      });
  std::ranges::move(judge_again(before, after, expected), std::back_inserter(findings));
  return findings;
}

}  // namespace shakedown::node
