// Which nodes have lost an InfiniBand device, or a port of one.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/node/health/rules/comparison.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/majority.hpp"

namespace shakedown::node {
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
Judgement judge_ports(const Node& node, const Ports& usual) {
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
      if (node.ports != *usual) found.push_back(found_on(node.host, judge_ports(node, *usual)));
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
