// The rules by which a host's facts become findings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

struct HostRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  /// One judgement per thing looked at; `facts` as read_facts has them.
  std::function<std::vector<Judgement>(const Json& facts)> judge;
};

/// All rules, in the order in which they are printed. XIDs older than the window are warnings.
std::vector<HostRule> host_rules(double xid_window_h = 24);
// The groups, each a file of its own.
std::vector<HostRule> system_rules();    // cores, memory, limits, kernel
std::vector<HostRule> storage_rules();   // file systems
std::vector<HostRule> network_rules();   // PCI, InfiniBand, NICs, ports
std::vector<HostRule> software_rules();  // driver, libraries, variables
HostRule kernel_log_rule(double xid_window_h);
inline constexpr const char* kKernelLog = "kernel-log";  // its name

std::vector<Finding> judge_host(const std::string& host, const Json& facts,
                                double xid_window_h = 24);

/// A fact, or null where it is absent.
const Json& fact_of(const Json& facts, const char* name);

}  // namespace shakedown::node
