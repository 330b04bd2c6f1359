// How the nodes of a job differ.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/statistics.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {
namespace {

Judgement judge_setting(const Difference& difference) {
  return warning(Class::config, difference.cause,
                 fmt::format("reconfigure: the same {} on all nodes", difference.label));
}
/// Ranks with different versions of it do not work together.
Judgement judge_version(const Difference& difference) {
  return failure(Class::software, difference.cause,
                 fmt::format("reconfigure: the same {} on all nodes", difference.label));
}
Judgement judge_variable(const Difference& difference) {
  return warning(Class::config, difference.cause,
                 fmt::format("set {} on all nodes or on none: mpirun -x, srun --export=ALL",
                             difference.label));
}
Judgement compare_nics(const Difference& difference) {
  return warning(Class::infrastructure, difference.cause,
                 "inspect the NICs of this node and their links");
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

/// "100 100" in Gbit/s: the NICs that are up, whatever their names.
std::string speeds_of(const Json& nics) {
  std::vector<double> speeds;
  for (const Json& nic : nics)
    if (nic.value("state", "") == "up" && nic.contains("speed_mbits"))
      speeds.push_back(nic.at("speed_mbits").get<double>() / 1e3);
  std::ranges::sort(speeds);
  return speeds.empty() ? "none known" : fmt::format("{:g}", fmt::join(speeds, " "));
}

/// A fact that is an object: how a key of it is named, and the value of one that a node lacks.
struct Keyed {
  std::string label;
  const char* absent;
  JudgeDifference judge;
};
Keyed keyed(const std::string& fact, const std::string& key) {
  if (fact == "nccl_variables") return {key, "unset", judge_variable};
  if (fact == "libraries")
    return {"library " + key, "absent",
            key == "nccl" || key == "mpi" ? judge_version : judge_setting};
  return {fmt::format("{} {}", fact, key), "absent", judge_setting};
}

std::string label_of(std::string fact) {
  std::ranges::replace(fact, '_', ' ');
  return fact;
}

/// A fact that all nodes should have alike. A key that one node has and another lacks differs.
void add_fact(std::vector<Comparables>& nodes, const std::vector<NodeReport>& reports,
              const std::string& fact) {
  std::set<std::string> keys;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Json& value = fact_of(reports[i].facts, fact.c_str());
    if (value.is_null()) continue;
    if (!value.is_object())
      nodes[i][label_of(fact)] = {text_of(value),
                                  fact == "revision" ? judge_version : judge_setting};
    else
      for (const auto& [key, part] : value.items()) keys.insert(key);
  }
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Json& value = fact_of(reports[i].facts, fact.c_str());
    if (!value.is_object()) continue;
    for (const std::string& key : keys) {
      const Keyed as = keyed(fact, key);
      nodes[i][as.label] = {value.contains(key) ? text_of(value.at(key)) : as.absent, as.judge};
    }
  }
}

std::vector<Comparables> comparables_of(const std::vector<NodeReport>& reports) {
  std::vector<Comparables> nodes(reports.size());
  for (const Fact& fact : all_facts())
    if (fact.compared) add_fact(nodes, reports, fact.name);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (const Json& nics = fact_of(reports[i].facts, "nics"); !nics.is_null())
      nodes[i]["NICs up, Gbit/s"] = {speeds_of(nics), compare_nics};
    if (reports[i].gpus.driver_version)
      nodes[i]["driver"] = {*reports[i].gpus.driver_version, judge_setting};
  }
  return nodes;
}

constexpr double kSameMemory = 0.97;  // the firmware's share differs a little

/// A node with less memory than the others has lost a module.
std::vector<Finding> compare_memory(const std::vector<NodeReport>& reports) {
  std::vector<double> sizes;
  for (const NodeReport& report : reports)
    if (const Json& gib = fact_of(report.facts, "memory_gib"); !gib.is_null()) sizes.push_back(gib);
  if (sizes.size() < 2) return {};
  const double usual = sizes.size() < 3 ? *std::ranges::max_element(sizes) : median_of(sizes);
  std::vector<Finding> found;
  for (const NodeReport& report : reports)
    if (const Json& gib = fact_of(report.facts, "memory_gib");
        !gib.is_null() && gib < kSameMemory * usual)
      found.push_back(
          finding_of(kNodesAlike,
                     warning(Class::hardware,
                             fmt::format("{:.0f} GiB of memory, {:.0f} on {}", gib.get<double>(),
                                         usual, sizes.size() < 3 ? "the other" : "most nodes"),
                             "inspect the memory modules"),
                     Scope::node, report.host, report.host));
  return found;
}

constexpr double kClocksApart_s = 1, kClocksFail_s = 60;

/// Records, certificates (munge), time-outs and make go by the time of day.
Judgement judge_clock(double ahead_s, const std::string& of) {
  const auto judge = std::abs(ahead_s) < kClocksFail_s ? warning : failure;
  return judge(Class::config,
               fmt::format("the clock is {:.1f} s {} {}", std::abs(ahead_s),
                           ahead_s > 0 ? "ahead of" : "behind", of),
               "start chronyd or ntpd; chronyc makestep");
}

/// Of two nodes nobody knows which is right.
std::vector<Finding> compare_clocks(const std::vector<NodeReport>& reports) {
  std::vector<double> clocks;
  for (const NodeReport& report : reports)
    if (report.clock_s) clocks.push_back(*report.clock_s);
  if (clocks.size() < 2 || clocks.size() < reports.size()) return {};
  if (clocks.size() == 2) {
    const double ahead_s = clocks[0] - clocks[1];
    if (std::abs(ahead_s) < kClocksApart_s) return {};
    return {finding_of(kNodesAlike,
                       judge_clock(ahead_s, fmt::format("that of {}", reports[1].host)), Scope::job,
                       "node_check", "", reports[0].host)};
  }
  const double usual = median_of(clocks);
  std::vector<Finding> found;
  for (const NodeReport& report : reports)
    if (const double ahead_s = *report.clock_s - usual; std::abs(ahead_s) >= kClocksApart_s)
      found.push_back(finding_of(kNodesAlike, judge_clock(ahead_s, "most nodes"), Scope::node,
                                 report.host, report.host));
  return found;
}

}  // namespace

std::vector<Finding> compare_nodes(const std::vector<NodeReport>& reports) {
  if (reports.size() < 2) return {};
  std::vector<std::string> hosts;
  for (const NodeReport& report : reports) hosts.push_back(report.host);
  auto [found, alike] = compare(hosts, comparables_of(reports));
  const Compared ports = compare_infiniband(reports);
  std::ranges::copy(ports.findings, std::back_inserter(found));
  alike += ports.alike;
  std::ranges::move(compare_memory(reports), std::back_inserter(found));
  std::ranges::move(compare_clocks(reports), std::back_inserter(found));
  if (alike > 0)
    found.push_back(finding_of(
        kNodesAlike, passed(fmt::format("{} facts are the same on {} nodes", alike, hosts.size())),
        Scope::job, "node_check"));
  return found;
}

// Which nodes have lost an InfiniBand device, or a port of one.

namespace {

constexpr const char* kActive = "ACTIVE";

Judgement judge_state(const Difference& difference) {
  const char* action = "inspect link: cable and switch port";
  if (difference.most == kActive) return failure(Class::infrastructure, difference.cause, action);
  return warning(Class::infrastructure, difference.cause, action);
}
Judgement judge_rate(const Difference& difference) {
  const bool slower =
      std::strtod(difference.mine.c_str(), nullptr) < std::strtod(difference.most.c_str(), nullptr);
  const char* action = "inspect link: cable and switch port";
  if (slower && !difference.most.empty())
    return failure(Class::infrastructure, difference.cause, action);
  return warning(Class::infrastructure, difference.cause, action);
}
Judgement judge_firmware(const Difference& difference) {
  return warning(Class::config, difference.cause,
                 "reconfigure: the same firmware of InfiniBand adapters on all nodes");
}

using Ports = std::set<std::string>;

struct Node {
  std::string host;
  Ports ports;
  std::map<std::string, Comparables> attributes;  // by port
};

Comparables attributes_of(const Json& port, const std::string& name) {
  Comparables found;
  if (port.contains("state"))
    found["InfiniBand port " + name] = {port.at("state").get<std::string>(), judge_state};
  if (port.contains("rate_gbits"))
    found["rate of " + name] = {fmt::format("{:g} Gbit/s", port.at("rate_gbits").get<double>()),
                                judge_rate};
  if (port.contains("firmware"))
    found["firmware of " + name] = {port.at("firmware").get<std::string>(), judge_firmware};
  return found;
}

Finding found_on(const std::string& host, const Judgement& judgement) {
  return finding_of(kNodesAlike, judgement, Scope::node, host, host);
}

std::string text_of(const Ports& ports) { return listed({ports.begin(), ports.end()}); }

Ports without(const Ports& all, const Ports& these) {
  Ports rest;
  std::ranges::set_difference(all, these, std::inserter(rest, rest.end()));
  return rest;
}

/// A node whose ports are not those that most nodes have.
Judgement compare_ports(const Node& node, const Ports& usual) {
  const Ports missing = without(usual, node.ports), extra = without(node.ports, usual);
  const std::string count =
      fmt::format("{} InfiniBand ports, {} on most nodes", node.ports.size(), usual.size());
  if (node.ports.size() < usual.size())
    return failure(Class::hardware, fmt::format("{}: {} is missing", count, text_of(missing)),
                   "inspect the adapter (lspci -d 15b3:, dmesg); reseat it, RMA if it stays away");
  if (!missing.empty())
    return warning(Class::config,
                   fmt::format("InfiniBand ports are named {}, on most nodes {}", text_of(extra),
                               text_of(missing)),
                   "give devices the same names on all nodes, or do not set NCCL_IB_HCA");
  return warning(
      Class::config, fmt::format("{}: {} is here only", count, text_of(extra)),
      "inspect the other nodes; leave it unused by NCCL_IB_HCA if it is there by design");
}

std::vector<Finding> compare_ports(const std::vector<Node>& nodes) {
  std::vector<Ports> all;
  for (const Node& node : nodes) all.push_back(node.ports);
  if (std::ranges::count(all, all.front()) == std::ssize(all)) return {};
  std::vector<Finding> found;
  if (const auto usual = majority_of(all)) {
    for (const Node& node : nodes)
      if (node.ports != *usual) found.push_back(found_on(node.host, compare_ports(node, *usual)));
    return found;
  }
  Ports every;
  for (const Ports& ports : all) every.insert(ports.begin(), ports.end());
  std::map<std::string, std::vector<std::string>> hosts;  // by what they lack
  for (const Node& node : nodes)
    if (const Ports lacks = without(every, node.ports); !lacks.empty())
      hosts[text_of(lacks)].push_back(node.host);
  std::vector<std::string> parts;
  for (const auto& [ports, of] : hosts)
    parts.push_back(fmt::format("{} missing on {}", ports, listed(of)));
  return {finding_of(kNodesAlike,
                     warning(Class::infrastructure,
                             fmt::format("InfiniBand ports differ: {}", fmt::join(parts, "; ")),
                             "inspect the adapters (lspci -d 15b3:, dmesg)"),
                     Scope::job, "node_check")};
}

}  // namespace

Compared compare_infiniband(const std::vector<NodeReport>& reports) {
  std::vector<Node> nodes;
  for (const NodeReport& report : reports) {
    const Json& ports = fact_of(report.facts, "infiniband");
    if (ports.is_null()) continue;  // a finding of its own
    nodes.push_back({report.host, {}, {}});
    for (const Json& port : ports) {
      const auto name = port.at("port").get<std::string>();
      nodes.back().ports.insert(name);
      nodes.back().attributes[name] = attributes_of(port, name);
    }
  }
  if (nodes.size() < 2) return {};
  Compared all{compare_ports(nodes), 0};
  Ports names;
  for (const Node& node : nodes) names.insert(node.ports.begin(), node.ports.end());
  for (const std::string& name : names) {
    std::vector<std::string> hosts;
    std::vector<Comparables> have;
    for (const Node& node : nodes)
      if (const auto port = node.attributes.find(name); port != node.attributes.end()) {
        hosts.push_back(node.host);
        have.push_back(port->second);
      }
    if (hosts.size() < 2) continue;
    Compared port = compare(hosts, have);
    std::ranges::move(port.findings, std::back_inserter(all.findings));
    all.alike += port.alike;
  }
  return all;
}

}  // namespace shakedown::node
