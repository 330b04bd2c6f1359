// All findings about the nodes of a job: of their GPUs, their hosts, and how they differ.
#pragma once

#include <string>
#include <vector>

#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

/// What the user says of the nodes.
struct Expected {
  int gpus = -1;             // per node; below 0: Slurm's variables, else most nodes, else the bus
  double xid_window_h = 24;  // XIDs that are older are warnings
  bool uses_gpus = true;     // whether this program, of its own CUDA, works on them: not passive
};

struct NodeRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  Judgement (*judge)(const NodeReport& report, const std::vector<NodeReport>& reports,
                     const Expected& expected);
};
/// Those that see GPUs and host together.
std::vector<NodeRule> node_rules();

/// Every check of bin/node_check with what it looks at, a line each.
std::string list_of_checks();

std::vector<Finding> judge_nodes(const std::vector<NodeReport>& reports, const Expected& expected);

/// GPUs that a node should have, and who says so.
struct ExpectedGpus {
  int count = 0;
  std::string by;  // "--expect-gpus"
};
std::optional<ExpectedGpus> expected_on(const NodeReport& report,
                                        const std::vector<NodeReport>& reports,
                                        const Expected& expected);

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
