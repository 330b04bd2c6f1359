// How the nodes of a job differ, and what was counted between two readings.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "common/statistics.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/majority.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {
namespace {

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// "100000 100000": the NICs that are up, whatever their names.
std::string speeds_of(const Json& nics) {
  std::vector<int> speeds;
  for (const Json& nic : nics)
    if (nic.value("state", "") == "up" && nic.contains("speed_mbits"))
      speeds.push_back(nic.at("speed_mbits").get<int>());
  std::ranges::sort(speeds);
  return fmt::format("{}", fmt::join(speeds, " "));
}

/// Name and value of all that should be alike, of one node.
using Comparables = std::map<std::string, std::string>;

Comparables comparables_of(const NodeReport& report) {
  Comparables found;
  for (const Fact& fact : all_facts()) {
    const Json& value = fact_of(report.facts, fact.name);
    if (!fact.compared || value.is_null()) continue;
    if (!value.is_object()) {
      found[fact.name] = text_of(value);
      continue;
    }
    for (const auto& [key, part] : value.items())
      found[fmt::format("{} {}", fact.name, key)] = text_of(part);
  }
  if (const Json& nics = fact_of(report.facts, "nics"); !nics.is_null())
    found["NIC speeds in Mbit/s"] = speeds_of(nics);
  if (report.gpus.driver_version) found["driver"] = *report.gpus.driver_version;
  const Json& ports = fact_of(report.facts, "infiniband");
  for (const Json& port : ports)
    for (const char* key : {"firmware", "state", "rate_gbits"})
      if (port.contains(key))
        found[fmt::format("{} {}", port.at("port").get<std::string>(), key)] =
            text_of(port.at(key));
  return found;
}

/// Ranks with different versions of these do not work together.
bool must_be_alike(const std::string& name) {
  return name == "libraries nccl" || name == "libraries mpi" || name == "revision";
}

Judgement judge_difference(const std::string& name, const std::string& cause) {
  const std::string action = fmt::format("reconfigure: the same {} on all nodes", name);
  if (must_be_alike(name)) return failure(Class::software, cause, action);
  return warning(Class::config, cause, action);
}

std::string count_of_nodes(std::size_t n) {
  return fmt::format("the {} other{}", n, n == 1 ? "" : "s");
}

class Comparison {
 public:
  explicit Comparison(const std::vector<NodeReport>& reports) {
    for (const NodeReport& report : reports) {
      hosts_.push_back(report.host);
      nodes_.push_back(comparables_of(report));
      for (const auto& [name, value] : nodes_.back()) names_.insert(name);
    }
  }

  std::vector<Finding> findings() {
    std::vector<std::string> same;
    for (const std::string& name : names_)
      if (compare(name)) same.push_back(name);
    if (!same.empty())
      found_.push_back(finding_of(
          "nodes-alike",
          passed(fmt::format("{} facts are the same on {} nodes", same.size(), hosts_.size())),
          Scope::job, "node_check"));
    return found_;
  }

 private:
  /// Whether all nodes have the same value.
  bool compare(const std::string& name) {
    std::map<std::string, std::vector<std::size_t>> by_value;
    std::vector<std::string> known;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (const auto value = nodes_[i].find(name); value != nodes_[i].end()) {
        by_value[value->second].push_back(i);
        known.push_back(value->second);
      }
    report_unknown(name, known.size());
    if (by_value.size() == 1) return known.size() == nodes_.size();
    if (const auto most = majority_of(known))
      blame(name, *most, by_value);
    else
      name_all(name, by_value);
    return false;
  }

  void report_unknown(const std::string& name, std::size_t known) {
    for (std::size_t i = 0; known < nodes_.size() && i < nodes_.size(); ++i)
      if (!nodes_[i].contains(name))
        add(i, not_known(fmt::format("{}: not known here, but on {} of {} nodes", name, known,
                                     nodes_.size())));
  }

  void blame(const std::string& name, const std::string& most,
             const std::map<std::string, std::vector<std::size_t>>& by_value) {
    for (const auto& [value, nodes] : by_value)
      if (value != most)
        for (std::size_t i : nodes)
          add(i,
              judge_difference(name, fmt::format("{} {} on {}, {} on {}", name, value, hosts_[i],
                                                 most, count_of_nodes(by_value.at(most).size()))));
  }

  void name_all(const std::string& name,
                const std::map<std::string, std::vector<std::size_t>>& by_value) {
    std::vector<std::string> parts;
    for (const auto& [value, nodes] : by_value) {
      std::vector<std::string> hosts;
      for (std::size_t i : nodes) hosts.push_back(hosts_[i]);
      parts.push_back(fmt::format("{} on {}", value, fmt::join(hosts, ", ")));
    }
    found_.push_back(finding_of(
        "nodes-alike",
        judge_difference(name, fmt::format("{} differs: {}", name, fmt::join(parts, "; "))),
        Scope::job, "node_check"));
  }

  void add(std::size_t node, const Judgement& judgement) {
    found_.push_back(finding_of("nodes-alike", judgement, Scope::node, hosts_[node], hosts_[node]));
  }

  std::vector<std::string> hosts_;
  std::vector<Comparables> nodes_;
  std::set<std::string> names_;
  std::vector<Finding> found_;
};

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
          finding_of("nodes-alike",
                     warning(Class::hardware,
                             fmt::format("{:.0f} GiB of memory, {:.0f} on {}", gib.get<double>(),
                                         usual, sizes.size() < 3 ? "the other" : "most nodes"),
                             "inspect the memory modules"),
                     Scope::node, report.host, report.host));
  return found;
}

}  // namespace

std::vector<Finding> compare_nodes(const std::vector<NodeReport>& reports) {
  if (reports.size() < 2) return {};
  auto found = Comparison(reports).findings();
  auto of_memory = compare_memory(reports);
  std::ranges::move(of_memory, std::back_inserter(found));
  return found;
}

}  // namespace shakedown::node
