// The rules by which a host's facts become findings.
#pragma once

#include <string>
#include <vector>

#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

struct HostRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  /// One judgement per thing looked at; `facts` as read_facts has them.
  std::vector<Judgement> (*judge)(const Json& facts);
};

/// All rules, in the order in which they are printed.
std::vector<HostRule> host_rules();
// The groups, each a file of its own.
std::vector<HostRule> system_rules();    // cores, memory, limits, kernel
std::vector<HostRule> storage_rules();   // file systems
std::vector<HostRule> network_rules();   // PCI, InfiniBand, NICs, ports
std::vector<HostRule> software_rules();  // driver, libraries, variables, the kernel's messages

std::vector<Finding> judge_host(const std::string& host, const Json& facts);

/// A fact, or null where it is absent.
const Json& fact_of(const Json& facts, const char* name);

}  // namespace shakedown::node
