// What differs between nodes is named by majority: with fewer than three it is named without blame.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

inline constexpr const char* kNodesAlike = "nodes-alike";  // the check's name

struct Difference {
  std::string label;
  std::string cause;
  std::string mine, most;  // empty where there is no majority
};
using JudgeDifference = Judgement (*)(const Difference& difference);

struct Comparable {
  std::string value;
  JudgeDifference judge = nullptr;  // where it is not that of most nodes
};
/// By label: what should be alike, of one node. A label that is absent is not known.
using Comparables = std::map<std::string, Comparable>;

struct Compared {
  std::vector<Finding> findings;
  std::size_t alike = 0;  // labels that all nodes know, with the same value
};
/// A finding for each node that is unlike most, or does not know what others do; one for the job
/// where no value is that of most.
Compared compare(const std::vector<std::string>& hosts, const std::vector<Comparables>& nodes);

/// Ports that a node lacks, and those whose state, rate or firmware differs.
Compared compare_infiniband(const std::vector<NodeReport>& reports);

}  // namespace shakedown::node
