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

/// What should be alike, and what to conclude where it is not that of most nodes.
struct Alike {
  Class class_;
  const char* action;                                                         // {}: the label
  bool (*fails)(const std::string& mine, const std::string& most) = nullptr;  // else a warning
};
constexpr const char* kSame = "reconfigure: the same {} on all nodes";
constexpr const char* kCable = "inspect link: cable and switch port";
constexpr const char* kActive = "ACTIVE";
constexpr Alike kSetting{Class::config, kSame};
/// Ranks with different versions of it do not work together.
constexpr Alike kVersion{Class::software, kSame, [](auto&, auto&) { return true; }};
constexpr Alike kVariable{Class::config,
                          "set {} on all nodes or on none: mpirun -x, srun --export=ALL"};
constexpr Alike kNics{Class::infrastructure, "inspect the NICs of this node and their links"};
constexpr Alike kState{Class::infrastructure, kCable,
                       [](auto&, auto& most) { return most == kActive; }};
constexpr Alike kRate{Class::infrastructure, kCable, [](auto& mine, auto& most) {
                        return !most.empty() && std::strtod(mine.c_str(), nullptr) <
                                                    std::strtod(most.c_str(), nullptr);
                      }};
constexpr Alike kFirmware{Class::config,
                          "reconfigure: the same firmware of InfiniBand adapters on all nodes"};

struct Comparable {
  std::string value;
  const Alike* alike = nullptr;
};
/// By label: what should be alike, of one node. A label that is absent is not known.
using Comparables = std::map<std::string, Comparable>;

Finding found_on(const std::string& host, const Judgement& judgement) {
  return finding_of(kNodesAlike, judgement, Scope::node, host, host);
}
Finding found_of_job(const Judgement& judgement) {
  return finding_of(kNodesAlike, judgement, Scope::job, "node_check");
}

/// A finding for each node that is unlike most, or does not know what others do; one for the job
/// where no value is that of most. Counts the labels that all nodes know, with the same value.
class Comparison {
 public:
  Comparison(const std::vector<std::string>& hosts, const std::vector<Comparables>& nodes,
             std::vector<Finding>& found, std::size_t& alike)
      : hosts_(hosts), nodes_(nodes), found_(found) {
    std::set<std::string> labels;
    for (const Comparables& node : nodes_)
      for (const auto& [label, comparable] : node) labels.insert(label);
    for (const std::string& label : labels) alike += compare(label);
  }

 private:
  using ByValue = std::map<std::string, std::vector<std::size_t>>;  // numbers of nodes

  /// Whether all nodes have the same value.
  bool compare(const std::string& label) {
    ByValue by_value;
    std::vector<std::string> known;
    const Alike* alike = nullptr;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (const auto found = nodes_[i].find(label); found != nodes_[i].end()) {
        by_value[found->second.value].push_back(i);
        known.push_back(found->second.value);
        alike = found->second.alike;
      }
    report_unknown(label, known.size());
    if (by_value.size() == 1) return known.size() == nodes_.size();
    if (const auto most = majority_of(known))
      blame(label, *most, by_value, *alike);
    else
      name_all(label, by_value, *alike);
    return false;
  }

  void report_unknown(const std::string& label, std::size_t known) {
    for (std::size_t i = 0; known < nodes_.size() && i < nodes_.size(); ++i)
      if (!nodes_[i].contains(label))
        found_.push_back(
            found_on(hosts_[i], not_known(fmt::format("{} is not known here, but on {} of {} nodes",
                                                      label, known, nodes_.size()))));
  }

  static Judgement judge(const Alike& alike, const std::string& label, const std::string& cause,
                         const std::string& mine = "", const std::string& most = "") {
    const auto conclude = alike.fails && alike.fails(mine, most) ? failure : warning;
    return conclude(alike.class_, cause, fmt::format(fmt::runtime(alike.action), label));
  }

  void blame(const std::string& label, const std::string& most, const ByValue& by_value,
             const Alike& alike) {
    const std::size_t usual = by_value.at(most).size();
    const char* const the = usual + 1 == nodes_.size() ? "the " : "";
    for (const auto& [value, nodes] : by_value) {
      if (value == most) continue;
      const std::string cause =
          fmt::format("{}: {} here, {} on {}{} others", label, value, most, the, usual);
      for (std::size_t i : nodes)
        found_.push_back(found_on(hosts_[i], judge(alike, label, cause, value, most)));
    }
  }

  void name_all(const std::string& label, const ByValue& by_value, const Alike& alike) {
    std::vector<std::string> parts;
    for (const auto& [value, nodes] : by_value) {
      std::vector<std::string> hosts;
      for (std::size_t i : nodes) hosts.push_back(hosts_[i]);
      parts.push_back(fmt::format("{} on {}", value, listed(hosts)));
    }
    found_.push_back(found_of_job(
        judge(alike, label, fmt::format("{} differs: {}", label, fmt::join(parts, "; ")))));
  }

  const std::vector<std::string>& hosts_;
  const std::vector<Comparables>& nodes_;
  std::vector<Finding>& found_;
};

std::string shown(const Json& value) {
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
      nodes[i][label_of(fact)] = {shown(value), fact == "revision" ? &kVersion : &kSetting};
    else
      for (const auto& [key, part] : value.items()) keys.insert(key);
  }
  const bool of_nccl = fact == "nccl_variables", of_library = fact == "libraries";
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Json& value = fact_of(reports[i].facts, fact.c_str());
    if (!value.is_object()) continue;
    for (const std::string& key : keys) {
      const std::string absent = of_nccl ? "unset" : "absent";
      const std::string label = of_nccl      ? key
                                : of_library ? "library " + key
                                             : fmt::format("{} {}", fact, key);
      const bool together = of_library && (key == "nccl" || key == "mpi");
      nodes[i][label] = {value.contains(key) ? shown(value.at(key)) : absent, of_nccl ? &kVariable
                                                                              : together
                                                                                  ? &kVersion
                                                                                  : &kSetting};
    }
  }
}

std::vector<Comparables> comparables_of(const std::vector<NodeReport>& reports) {
  std::vector<Comparables> nodes(reports.size());
  for (const Fact& fact : all_facts())
    if (fact.compared) add_fact(nodes, reports, fact.name);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (const Json& nics = fact_of(reports[i].facts, "nics"); !nics.is_null())
      nodes[i]["NICs up, Gbit/s"] = {speeds_of(nics), &kNics};
    if (reports[i].gpus.driver_version)
      nodes[i]["driver"] = {*reports[i].gpus.driver_version, &kSetting};
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
      found.push_back(found_on(
          report.host, warning(Class::hardware,
                               fmt::format("{:.0f} GiB of memory, {:.0f} on {}", gib.get<double>(),
                                           usual, sizes.size() < 3 ? "the other" : "most nodes"),
                               "inspect the memory modules")));
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
      found.push_back(found_on(report.host, judge_clock(ahead_s, "most nodes")));
  return found;
}

// Which nodes have lost an InfiniBand device, or a port of one.

using Ports = std::set<std::string>;

struct Node {
  std::string host;
  Ports ports;
  std::map<std::string, Comparables> attributes;  // by port
};

Comparables attributes_of(const Json& port, const std::string& name) {
  Comparables found;
  if (port.contains("state"))
    found["InfiniBand port " + name] = {port.at("state").get<std::string>(), &kState};
  if (port.contains("rate_gbits"))
    found["rate of " + name] = {fmt::format("{:g} Gbit/s", port.at("rate_gbits").get<double>()),
                                &kRate};
  if (port.contains("firmware"))
    found["firmware of " + name] = {port.at("firmware").get<std::string>(), &kFirmware};
  return found;
}

std::string shown(const Ports& ports) { return listed({ports.begin(), ports.end()}); }

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
    return failure(Class::hardware, fmt::format("{}: {} is missing", count, shown(missing)),
                   "inspect the adapter (lspci -d 15b3:, dmesg); reseat it, RMA if it stays away");
  if (!missing.empty())
    return warning(Class::config,
                   fmt::format("InfiniBand ports are named {}, on most nodes {}", shown(extra),
                               shown(missing)),
                   "give devices the same names on all nodes, or do not set NCCL_IB_HCA");
  return warning(
      Class::config, fmt::format("{}: {} is here only", count, shown(extra)),
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
      hosts[shown(lacks)].push_back(node.host);
  std::vector<std::string> parts;
  for (const auto& [ports, of] : hosts)
    parts.push_back(fmt::format("{} missing on {}", ports, listed(of)));
  return {found_of_job(warning(Class::infrastructure,
                               fmt::format("InfiniBand ports differ: {}", fmt::join(parts, "; ")),
                               "inspect the adapters (lspci -d 15b3:, dmesg)"))};
}

/// Ports that a node lacks, and those whose state, rate or firmware differs.
void compare_infiniband(const std::vector<NodeReport>& reports, std::vector<Finding>& found,
                        std::size_t& alike) {
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
  if (nodes.size() < 2) return;
  std::ranges::move(compare_ports(nodes), std::back_inserter(found));
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
    if (hosts.size() > 1) Comparison(hosts, have, found, alike);
  }
}

}  // namespace

std::vector<Finding> compare_nodes(const std::vector<NodeReport>& reports) {
  if (reports.size() < 2) return {};
  std::vector<std::string> hosts;
  for (const NodeReport& report : reports) hosts.push_back(report.host);
  std::vector<Finding> found;
  std::size_t alike = 0;
  Comparison(hosts, comparables_of(reports), found, alike);
  compare_infiniband(reports, found, alike);
  std::ranges::move(compare_memory(reports), std::back_inserter(found));
  std::ranges::move(compare_clocks(reports), std::back_inserter(found));
  if (alike > 0)
    found.push_back(found_of_job(
        passed(fmt::format("{} facts are the same on {} nodes", alike, hosts.size()))));
  return found;
}

}  // namespace shakedown::node
