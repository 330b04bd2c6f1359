// All findings about the nodes of a job: of their GPUs, their hosts, and how they differ.
#pragma once

#include <vector>

#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

struct NodeRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  /// `expected_gpus` as judge_nodes has it.
  Judgement (*judge)(const NodeReport& report, const std::vector<NodeReport>& reports,
                     int expected_gpus);
};
/// Those that see GPUs and host together.
std::vector<NodeRule> node_rules();

/// Every check of bin/node_check with what it looks at, a line each.
std::string list_of_checks();

/// `expected_gpus`: per node; below 0: Slurm's variables, else most nodes, else the PCI bus decide.
std::vector<Finding> judge_nodes(const std::vector<NodeReport>& reports, int expected_gpus);

/// GPUs that a node should have, and who says so.
struct ExpectedGpus {
  int count = 0;
  std::string by;  // "--expect-gpus"
};
std::optional<ExpectedGpus> expected_on(const NodeReport& report,
                                        const std::vector<NodeReport>& reports, int option);

/// Facts and versions that differ between nodes, by majority where there is one.
std::vector<Finding> compare_nodes(const std::vector<NodeReport>& reports);

/// Errors that were counted between two readings of the same nodes.
std::vector<Finding> judge_growth(const std::vector<NodeReport>& before,
                                  const std::vector<NodeReport>& after);

}  // namespace shakedown::node
