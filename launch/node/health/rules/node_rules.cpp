#include "launch/node/health/rules/node_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/nvml_library.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/comparison.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"
#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kOption = "--expect-gpus";

/// "h200:8" and "8" are 8.
int number_at_end(const std::string& text) {
  const auto colon = text.rfind(':');
  return std::atoi(text.c_str() + (colon == std::string::npos ? 0 : colon + 1));
}

/// "0,2-3" are 3, "" is none.
int numbers_in(const std::string& list) {
  int count = 0;
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');) {
    const auto dash = one.find('-');
    count += dash == std::string::npos
                 ? 1
                 : 1 + std::atoi(one.c_str() + dash + 1) - std::atoi(one.c_str());
  }
  return count;
}

/// What Slurm gave the job on this node; 0: it does not say.
int gpus_of_slurm(const Json& slurm) {
  if (!slurm.is_object()) return 0;
  if (slurm.contains("SLURM_GPUS_ON_NODE")) return number_at_end(slurm.at("SLURM_GPUS_ON_NODE"));
  if (slurm.contains("SLURM_JOB_GPUS")) return numbers_in(slurm.at("SLURM_JOB_GPUS"));
  if (slurm.contains("SLURM_GPUS_PER_NODE")) return number_at_end(slurm.at("SLURM_GPUS_PER_NODE"));
  return 0;
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

/// Where the option says so it was looked at; where nothing else is known there is nothing to
/// judge.
Judgement none_expected(const ExpectedGpus& expected) {
  const std::string cause = fmt::format("no GPU, none expected ({})", expected.by);
  return expected.by == kOption ? passed(cause) : not_applicable(cause);
}

/// Whether a node has no GPU and should have none: then its driver is of no concern.
bool needs_no_driver(const NodeReport& report, const std::vector<NodeReport>& reports,
                     const Expected& given) {
  const auto expected = expected_on(report, reports, given);
  return expected && expected->count == 0 && report.gpus.problem && report.gpus.stalled.empty();
}
constexpr const char* kNoneExpected = "no GPU, none expected";

Judgement judge_count(const NodeReport& report, const std::vector<NodeReport>& reports,
                      const Expected& given) {
  const auto expected = expected_on(report, reports, given);
  const int found = static_cast<int>(report.gpus.gpus.size());
  if (report.gpus.problem && (!expected || !report.gpus.stalled.empty()))
    return not_known("how many GPUs there are is not known");
  if (expected && expected->count == 0 && found == 0) return none_expected(*expected);
  if (!expected) {
    return not_known(fmt::format("{} GPUs; how many there should be is not known", found),
                     "use --expect-gpus");
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
Judgement judge_management(const NodeReport& report, const std::vector<NodeReport>& reports,
                           const Expected& given) {
  if (needs_no_driver(report, reports, given)) return not_applicable(kNoneExpected);
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

/// A driver that is too old for Shakedown need not be so for the node's jobs.
Judgement judge_older_driver(const std::string& cause, bool uses_gpus) {
  if (uses_gpus)
    return failure(Class::software, cause, "update the driver, or build with an older CUDA");
  return not_known(cause + ": this is about Shakedown's build, not the node",
                   "build Shakedown with a CUDA that the driver supports");
}

Judgement judge_driver(const NodeReport& report, const std::vector<NodeReport>& reports,
                       const Expected& given) {
  if (needs_no_driver(report, reports, given)) return not_applicable(kNoneExpected);
  const Json& module = fact_of(report.facts, "driver_module");
  const Json& libraries = fact_of(report.facts, "libraries");
  const HostGpus& gpus = report.gpus;
  if (!gpus.driver_version) return not_known("the driver's version is not known");
  if (!module.is_null() && module != *gpus.driver_version)
    return failure(Class::software,
                   fmt::format("driver {} is loaded, its library is {}", module.get<std::string>(),
                               *gpus.driver_version),
                   "reboot, or reload the driver's modules");
  const std::string built = libraries.is_object() ? libraries.value("cuda_built", "") : "";
  if (!built.empty() && gpus.cuda_driver_version &&
      std::atoi(gpus.cuda_driver_version->c_str()) < std::atoi(built.c_str()))
    return judge_older_driver(fmt::format("driver {} supports CUDA {}, Shakedown is built with {}",
                                          *gpus.driver_version, *gpus.cuda_driver_version, built),
                              given.uses_gpus);
  return passed(fmt::format("driver {}, CUDA {}", *gpus.driver_version,
                            gpus.cuda_driver_version.value_or("unknown")));
}

GpuContext context_of(const GpuReading& gpu, const NodeReport& report,
                      const std::vector<NodeReport>& reports) {
  GpuContext context;
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

std::optional<ExpectedGpus> expected_on(const NodeReport& report,
                                        const std::vector<NodeReport>& reports,
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

std::vector<NodeRule> node_rules() {
  return {{"gpu-count", "GPUs that are missing", judge_count},
          {"management", "whether the driver answers at all", judge_management},
          {"driver", "the driver's module, library and CUDA", judge_driver}};
}

std::string list_of_checks() {
  std::string text;
  const auto add = [&](const char* name, const char* what) {
    text += fmt::format("{:18} {}\n", name, what);
  };
  for (const NodeRule& rule : node_rules()) add(rule.name, rule.what);
  for (const GpuRule& rule : gpu_rules()) add(rule.name, rule.what);
  for (const HostRule& rule : host_rules()) add(rule.name, rule.what);
  add(kNodesAlike, "versions and settings that differ between the nodes");
  add("hung-check", "an earlier passive check that hangs in the kernel");
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
    for (const NodeRule& rule : node_rules())
      all.push_back(finding_of(rule.name, rule.judge(report, reports, expected), Scope::node,
                               report.host, report.host));
    for (const GpuReading& gpu : report.gpus.gpus) {
      auto found = judge_gpu(report.host, gpu, context_of(gpu, report, reports));
      std::ranges::move(found, std::back_inserter(all));
    }
    auto of_host = judge_host(report.host, report.facts, expected.xid_window_h);
    std::ranges::move(of_host, std::back_inserter(all));
  }
  auto differences = compare_nodes(reports);
  std::ranges::move(differences, std::back_inserter(all));
  return all;
}

}  // namespace shakedown::node
