// The rules by which a host's facts become findings.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown::node {

/// One per thing looked at.
struct Judgements : std::vector<Judgement> {
  using std::vector<Judgement>::vector;
  Judgements(Judgement one) { push_back(std::move(one)); }
};

inline constexpr const char* kAllFacts = nullptr;  // in a fact's place

/// A line of the table of rules.
struct HostRule {
  const char* name;  // of its findings
  const char* what;  // it looks at
  const char* fact;  // that it is about, as read_facts has it
  Judgement absent;  // where that is not known
  std::function<Judgements(const Json& fact, const Json& facts)> judge_fact;
  bool of_gpus = false;  // it does not apply to a host without them

  Judgements judge(const Json& facts) const;
};

/// All rules, in the order in which they are printed. XIDs older than the window are warnings.
std::vector<HostRule> host_rules(double xid_window_h = 24);
// Those of the other files.
std::vector<HostRule> software_rules();  // driver, libraries, variables
HostRule kernel_log_rule(double xid_window_h);
inline constexpr const char* kKernelLog = "kernel-log";  // its name

std::vector<Finding> judge_host(const std::string& host, const Json& facts,
                                double xid_window_h = 24);

/// A fact, or null where it is absent.
const Json& fact_of(const Json& facts, const char* name);

/// One judgement per GPU and XID that is neither an application's error nor a consequence of
/// another, however often it came. What is older than the window is at most a warning.
Judgements judge_kernel_events(const std::vector<KernelEvent>& events, double window_h = 24);

using NcclVariables = std::map<std::string, std::string>;
/// One judgement per variable that is set: a warning for one that takes a path or an algorithm away
/// from NCCL, for one that is not in the table, and for one whose value the host cannot follow, for
/// which `wrong` has the reason; a failure where NCCL does not start then.
Judgements explain_nccl(const NcclVariables& variables, const NcclVariables& wrong = {});

}  // namespace shakedown::node
