// The rules by which readings of GPUs, facts of hosts, and how nodes differ become findings.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

// What most of a group have: the reference where there is no other.

/// The value that more than half of at least three have; none where there is no such. With two that
/// differ nobody can say which is right.
template <class T>
std::optional<T> majority_of(const std::vector<T>& values) {
  if (values.size() < 3) return std::nullopt;
  std::map<T, std::size_t> counts;
  for (const T& value : values)
    if (2 * ++counts[value] > values.size()) return value;
  return std::nullopt;
}

/// What a rule may compare a GPU with.
struct GpuContext {
  std::vector<const GpuReading*> all;    // GPUs of the job, itself too
  std::vector<const GpuReading*> peers;  // those that are of its model
  std::vector<int> our_pids;             // processes of this job on its node
  std::vector<const GpuReading*> node;   // GPUs of its node, itself too
  bool under_load = false;               // this program kept it busy while it was read
  bool initialized = false;              // opening it is known to take no time
  std::string expected_mig;              // Expected's

  /// The known values of a field of the peers.
  template <class T, class Get>
  std::vector<T> known(Get&& get) const {
    std::vector<T> values;
    for (const GpuReading* peer : peers)
      if (const auto value = get(*peer)) values.push_back(*value);
    return values;
  }
  template <class T>
  std::optional<T> majority(Known<T> GpuReading::*field) const {
    return majority_of(known<T>([&](const GpuReading& peer) { return peer.*field; }));
  }
};

struct GpuRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  std::function<Judgement(const GpuReading& gpu, const GpuContext& context)> judge;
};

/// All rules, in the order in which they are printed.
std::vector<GpuRule> gpu_rules();
/// Those of NVLink, its fabric, C2C and PCIe, which are among them.
std::vector<GpuRule> link_rules();

/// "clique 1 of 0123abcd", "without a clique".
std::string text_of_clique(const GpuReading& gpu);

// Errors that are corrected are normal: many are those above both.
inline constexpr double kManyErrors = 1000, kManyTimesPeers = 100;  // of the peers' median
/// A rule on their number; `alone` is the limit where there are not three peers. In the words {0}
/// is this GPU's number, {1} `what`, {2} the limit, {3} the peers' median.
struct FewErrors {
  Known<std::uint64_t> (*count)(const GpuReading& gpu);
  const char *what, *many, *action;
  double alone = kManyErrors;

  Judgement operator()(const GpuReading& gpu, const GpuContext& context) const;
};

/// A layout of MIG as findings have it, its profiles in order: "1g.18gb:4,3g.71gb:1". Throws
/// UsageError where the option's value is none.
std::string mig_layout(const std::string& text);
/// Of calls in which the driver initializes GPUs, and which did not return.
Judgement judge_slow_opening(const std::string& cause);
/// By the name that GpuReading has for the action.
Judgement judge_recovery_action(const std::string& name);
inline constexpr const char* kPcieLink = "pcie-link";  // the rule's name
/// Not a rule: for a GPU that is busy for certain.
Judgement judge_pcie_under_load(const GpuReading& gpu);
/// Its processes that are none of ours.
std::vector<int> foreign_pids(const GpuReading& gpu, const std::vector<int>& our_pids);
/// Of a GPU that this job has not opened yet: the pids of others, or memory in use without any.
Judgement judge_foreign_use(const GpuReading& gpu, const GpuContext& context);
/// A slowdown by the hardware itself, or by a power brake; none where there is neither. Of one
/// sample a warning, for a busy GPU may show it for a moment; a failure where it `lasts`.
std::optional<Judgement> judge_hardware_slowdown(const GpuReading& gpu, bool lasts);

/// A finding about this GPU, by its UUID where it has one.
Finding finding_of_gpu(const std::string& check, const Judgement& judgement,
                       const std::string& host, const GpuReading& gpu);

/// One finding per rule for this GPU.
std::vector<Finding> judge_gpu(const std::string& host, const GpuReading& gpu,
                               const GpuContext& context);

// Of a host, by its facts.

/// One per thing looked at.
struct Judgements : std::vector<Judgement> {
  using std::vector<Judgement>::vector;
  Judgements(Judgement one) { push_back(std::move(one)); }
};

inline constexpr const char* kAllFacts = nullptr;  // in a fact's place
inline constexpr const char* kNoGpuOnBus = "no GPU on the PCI bus";

/// A line of the table of rules.
struct HostRule {
  const char* name;    // of its findings
  const char* what;    // it looks at
  const char* fact;    // that it is about, as read_facts has it
  const char* absent;  // where that is not known
  std::function<Judgements(const Json& fact, const Json& facts)> judge_fact;
  bool of_gpus = false;     // it does not apply to a host without them
  const char* action = "";  // where the fact is not known

  Judgements judge(const Json& facts) const;
};

/// All rules, in the order in which they are printed. XIDs older than the window are warnings.
std::vector<HostRule> host_rules(double xid_window_h = 24);
/// Those of libraries, variables and the kernel's messages, which are among them.
std::vector<HostRule> software_rules(double xid_window_h);
inline constexpr const char* kKernelLog = "kernel-log";  // its name

std::vector<Finding> judge_host(const std::string& host, const Json& facts,
                                double xid_window_h = 24);

/// A fact, or null where it is absent.
const Json& fact_of(const Json& facts, const char* name);

/// One judgement per GPU and XID that is neither an application's error nor a consequence of
/// another, however often it came. What is older than the window is at most a warning.
Judgements judge_kernel_events(const std::vector<KernelEvent>& events, double window_h = 24);

// Of all nodes of a job.

/// What the user says of the nodes.
struct Expected {
  int gpus = -1;             // per node; below 0: Slurm's variables, else most nodes, else the bus
  double xid_window_h = 24;  // XIDs that are older are warnings
  std::string mig = "";      // "1g.18gb:7", "any"; empty: MIG is not expected
  bool uses_gpus = true;     // whether this program, of its own CUDA, works on them: not passive
};

/// Every check of bin/node_check with what it looks at, a line each.
std::string list_of_checks();

std::vector<Finding> judge_nodes(const std::vector<NodeReport>& reports, const Expected& expected);

/// Of the fabric that a node's GPUs are in with those of others; empty: of none. Unknown where none
/// of them reports it.
Known<std::string> cluster_of(const NodeReport& report);

/// Facts and versions that differ between nodes, by majority where there is one: with fewer than
/// three they are named without blame.
inline constexpr const char* kNodesAlike = "nodes-alike";  // the check's name
std::vector<Finding> compare_nodes(const std::vector<NodeReport>& reports);

/// The failures that a later reading of the same nodes shows and the first did not.
std::vector<Finding> judge_again(const std::vector<NodeReport>& before,
                                 std::vector<NodeReport> later, const Expected& expected);

/// The PCIe link of every GPU while this program kept some of them busy, and what failed meanwhile.
/// A reading under load may leave the facts of the host out.
std::vector<Finding> judge_load(const std::vector<NodeReport>& before,
                                const std::vector<NodeReport>& under_load,
                                const Expected& expected);

/// Whether the inforom of every GPU is intact, of reports that have read it: a passive check has
/// not.
std::vector<Finding> judge_inforoms(const std::vector<NodeReport>& reports);

/// A rank's GPU, and where its cores are: as NearDevice says.
struct RankPlace {
  std::string host, gpu, near;
};
std::vector<Finding> judge_places(const std::vector<NodeReport>& reports,
                                  const std::vector<RankPlace>& ranks);

/// Errors that were counted between two readings of the same nodes, and what failed since.
std::vector<Finding> judge_growth(const std::vector<NodeReport>& before,
                                  const std::vector<NodeReport>& after, const Expected& expected);

}  // namespace shakedown::node
