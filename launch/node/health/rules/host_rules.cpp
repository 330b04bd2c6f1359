#include "launch/node/health/rules/host_rules.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shakedown::node {
namespace {

std::vector<Judgement> judge_stalls(const Json& facts) {
  const Json& stalled = fact_of(facts, "stalled");
  if (stalled.is_null()) return {passed("every fact of the host was read in time")};
  std::vector<Judgement> all;
  for (const Json& name : stalled)
    all.push_back(failure(Class::infrastructure,
                          fmt::format("reading {} does not return", name.get<std::string>()),
                          "inspect the file systems of the node and their servers; reboot"));
  return all;
}

}  // namespace

const Json& fact_of(const Json& facts, const char* name) {
  static const Json absent;
  const auto found = facts.find(name);
  return found == facts.end() ? absent : *found;
}

std::vector<HostRule> host_rules(double xid_window_h) {
  std::vector<HostRule> all{{"host-stall", "files of the host that cannot be read", judge_stalls}};
  for (const auto& group : {system_rules(), storage_rules(), network_rules(), software_rules()})
    all.insert(all.end(), group.begin(), group.end());
  all.push_back(kernel_log_rule(xid_window_h));
  return all;
}

std::vector<Finding> judge_host(const std::string& host, const Json& facts, double xid_window_h) {
  std::vector<Finding> findings;
  for (const HostRule& rule : host_rules(xid_window_h))
    for (const Judgement& judgement : rule.judge(facts))
      findings.push_back(finding_of(rule.name, judgement, Scope::node, host, host));
  return findings;
}

}  // namespace shakedown::node
