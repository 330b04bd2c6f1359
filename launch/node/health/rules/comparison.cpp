// How the nodes of a job differ.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/statistics.hpp"
#include "launch/node/health/rules/rules.hpp"

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
constexpr const char *kActive = "ACTIVE", *kNone = "none", *kRuns = "runs";
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

constexpr Alike kDomain{Class::infrastructure,
                        "inspect the switch trays of this node's rack (NMX-C)",
                        [](auto& mine, auto&) { return mine == kNone; }};
constexpr Alike kClique{Class::infrastructure,
                        "inspect the partitions of the rack (NMX-C); nothing to do if it is "
                        "divided on purpose"};
constexpr Alike kDaemon{Class::software,
                        "systemctl start nvidia-imex; see /var/log/nvidia-imex.log",
                        [](auto&, auto& most) { return most == kRuns; }};

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

/// Of its GPUs' first that is in one; among themselves they are compared elsewhere.
std::string clique_of(const NodeReport& report) {
  const auto is_in_one = [](const GpuReading& gpu) {
    return !gpu.fabric_cluster.value_or("").empty();
  };
  return text_of_clique(*std::ranges::find_if(report.gpus.gpus, is_in_one));
}

std::string label_of(std::string fact) {
  std::ranges::replace(fact, '_', ' ');
  return fact;
}

constexpr double kSameMemory = 0.97;  // the firmware's share differs a little

constexpr double kClocksApart_s = 1, kClocksFail_s = 60;

/// Records, certificates (munge), time-outs and make go by the time of day.
Judgement judge_clock(double ahead_s, const std::string& of) {
  const auto judge = std::abs(ahead_s) < kClocksFail_s ? warning : failure;
  return judge(Class::config,
               fmt::format("the clock is {:.1f} s {} {}", std::abs(ahead_s),
                           ahead_s > 0 ? "ahead of" : "behind", of),
               "start chronyd or ntpd; chronyc makestep");
}

// InfiniBand ports of which a node lacks some, or has others.

using Ports = std::set<std::string>;

std::string shown(const Ports& ports) { return listed({ports.begin(), ports.end()}); }

Ports without(const Ports& all, const Ports& these) {
  Ports rest;
  std::ranges::set_difference(all, these, std::inserter(rest, rest.end()));
  return rest;
}

/// A node whose ports are not those that most nodes have.
Judgement judge_unlike_ports(const Ports& ports, const Ports& usual) {
  const Ports missing = without(usual, ports), extra = without(ports, usual);
  const std::string count =
      fmt::format("{} InfiniBand ports, {} on most nodes", ports.size(), usual.size());
  if (ports.size() < usual.size())
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

class Comparison {
 public:
  explicit Comparison(const std::vector<NodeReport>& reports) : reports_(reports) {}

  std::vector<Finding> findings() {
    compare_facts();
    compare_infiniband();
    compare_fabrics();
    compare_memory();
    compare_clocks();
    if (alike_ > 0)
      add_of_job(passed(fmt::format("{} facts are the same on {} nodes", alike_, reports_.size())));
    return std::move(found_);
  }

 private:
  using Nodes = std::vector<std::size_t>;  // their numbers
  /// What should be alike: the values of those nodes that know it.
  struct Compared {
    const Alike* alike = nullptr;
    std::map<std::size_t, std::string> values;
  };
  using Table = std::map<std::string, Compared>;  // by label

  void add(std::size_t node, const Judgement& judgement) {
    const std::string& host = reports_[node].host;
    found_.push_back(finding_of(kNodesAlike, judgement, Scope::node, host, host));
  }
  void add_of_job(const Judgement& judgement, const std::string& subject = "") {
    found_.push_back(finding_of(kNodesAlike, judgement, Scope::job, "node_check", "", subject));
  }
  std::string hosts_of(const Nodes& nodes) const {
    std::vector<std::string> hosts;
    for (const std::size_t node : nodes) hosts.push_back(reports_[node].host);
    return listed(hosts);
  }
  /// Of the nodes that know the fact.
  template <class Use>
  void each_known(const char* fact, Use&& use) const {
    for (std::size_t node = 0; node < reports_.size(); ++node)
      if (const Json& value = fact_of(reports_[node].facts, fact); !value.is_null())
        use(node, value);
  }

  /// A finding for each of these nodes that is unlike most, or does not know what others do; one
  /// for the job where no value is that of most. Counts the labels that all know, with the same
  /// value.
  void compare(const Table& table, const Nodes& nodes) {
    for (const auto& [label, compared] : table) {
      std::map<std::string, Nodes> by_value;
      std::vector<std::string> known;
      for (const auto& [node, value] : compared.values) {
        by_value[value].push_back(node);
        known.push_back(value);
      }
      for (const std::size_t node : nodes)
        if (!compared.values.contains(node))
          add(node, not_known(fmt::format("{} is not known here, but on {} of {} nodes", label,
                                          known.size(), nodes.size())));
      if (by_value.size() > 1)
        report(label, *compared.alike, by_value, majority_of(known), nodes.size());
      else
        alike_ += known.size() == nodes.size();
    }
  }

  void report(const std::string& label, const Alike& alike,
              const std::map<std::string, Nodes>& by_value, const std::optional<std::string>& most,
              std::size_t nodes) {
    const auto judge = [&](const std::string& cause, const std::string& mine = "") {
      const bool fails = alike.fails && alike.fails(mine, most.value_or(""));
      return (fails ? failure : warning)(alike.class_, cause,
                                         fmt::format(fmt::runtime(alike.action), label));
    };
    std::vector<std::string> parts;
    for (const auto& [value, of] : by_value) {
      parts.push_back(fmt::format("{} on {}", value, hosts_of(of)));
      if (!most || value == *most) continue;
      const std::size_t usual = by_value.at(*most).size();
      for (const std::size_t node : of)
        add(node, judge(fmt::format("{}: {} here, {} on {}{} others", label, value, *most,
                                    usual + 1 == nodes ? "the " : "", usual),
                        value));
    }
    if (!most) add_of_job(judge(fmt::format("{} differs: {}", label, fmt::join(parts, "; "))));
  }

  void compare_facts() {
    Table table;
    for (const Fact& fact : all_facts())
      if (fact.compared) add_fact(table, fact.name);
    each_known("nics", [&](std::size_t node, const Json& nics) {
      set(table["NICs up, Gbit/s"], node, speeds_of(nics), kNics);
    });
    Nodes all;
    for (std::size_t node = 0; node < reports_.size(); ++node) {
      all.push_back(node);
      if (const auto& driver = reports_[node].gpus.driver_version)
        set(table["driver"], node, *driver, kSetting);
      if (const auto& on = reports_[node].gpus.confidential_computing)
        set(table["confidential computing"], node, *on ? "on" : "off", kSetting);
    }
    compare(table, all);
  }

  static void set(Compared& compared, std::size_t node, const std::string& value,
                  const Alike& alike) {
    compared.alike = &alike;
    compared.values[node] = value;
  }

  /// A fact that all nodes should have alike. A key that one node has and another lacks differs.
  void add_fact(Table& table, const std::string& fact) const {
    std::set<std::string> keys;
    each_known(fact.c_str(), [&](std::size_t node, const Json& value) {
      if (!value.is_object())
        set(table[label_of(fact)], node, shown(value), fact == "revision" ? kVersion : kSetting);
      else
        for (const auto& [key, part] : value.items()) keys.insert(key);
    });
    const bool of_nccl = fact == "nccl_variables" || fact == "network_variables";
    const bool of_library = fact == "libraries";
    each_known(fact.c_str(), [&](std::size_t node, const Json& value) {
      if (!value.is_object()) return;
      for (const std::string& key : keys) {
        const bool together = of_library && (key == "nccl" || key == "mpi");
        set(table[of_nccl      ? key
                  : of_library ? "library " + key
                               : fmt::format("{} {}", fact, key)],
            node,
            value.contains(key) ? shown(value.at(key))
            : of_nccl           ? "unset"
                                : "absent",
            of_nccl    ? kVariable
            : together ? kVersion
                       : kSetting);
      }
    });
  }

  /// Ports that a node lacks, and those whose state, rate or firmware differs.
  void compare_infiniband() {
    std::map<std::size_t, Ports> ports;
    std::map<std::string, Nodes> nodes_of;  // by port
    std::map<std::string, Table> tables;
    each_known("infiniband", [&](std::size_t node, const Json& list) {
      ports[node];
      for (const Json& port : list) {
        const auto name = port.at("port").get<std::string>();
        ports[node].insert(name);
        nodes_of[name].push_back(node);
        Table& table = tables[name];
        if (port.contains("state"))
          set(table["InfiniBand port " + name], node, port.at("state"), kState);
        if (port.contains("rate_gbits"))
          set(table["rate of " + name], node,
              fmt::format("{:g} Gbit/s", port.at("rate_gbits").get<double>()), kRate);
        if (port.contains("firmware"))
          set(table["firmware of " + name], node, port.at("firmware"), kFirmware);
      }
    });
    if (ports.size() < 2) return;
    compare_ports(ports);
    for (const auto& [name, nodes] : nodes_of)
      if (nodes.size() > 1) compare(tables[name], nodes);
  }

  void compare_ports(const std::map<std::size_t, Ports>& by_node) {
    std::vector<Ports> all;
    Ports every;
    for (const auto& [node, ports] : by_node) {
      all.push_back(ports);
      every.insert(ports.begin(), ports.end());
    }
    if (std::ranges::count(all, all.front()) == std::ssize(all)) return;
    const auto usual = majority_of(all);
    std::map<std::string, Nodes> by_lacking;
    for (const auto& [node, ports] : by_node) {
      if (usual && ports != *usual) add(node, judge_unlike_ports(ports, *usual));
      if (const Ports lacks = without(every, ports); !lacks.empty())
        by_lacking[shown(lacks)].push_back(node);
    }
    if (usual) return;
    std::vector<std::string> parts;
    for (const auto& [ports, nodes] : by_lacking)
      parts.push_back(fmt::format("{} missing on {}", ports, hosts_of(nodes)));
    add_of_job(warning(Class::infrastructure,
                       fmt::format("InfiniBand ports differ: {}", fmt::join(parts, "; ")),
                       "inspect the adapters (lspci -d 15b3:, dmesg)"));
  }

  /// Whether nodes are in an NVLink domain as the others are; of those of each domain, which is a
  /// rack's, clique and IMEX.
  void compare_fabrics() {
    std::map<std::string, Nodes> racks;  // by cluster
    Table domains;
    Nodes all;
    for (std::size_t node = 0; node < reports_.size(); ++node) {
      const auto cluster = cluster_of(reports_[node]);
      if (!cluster) continue;
      all.push_back(node);
      set(domains["NVLink domain of a rack"], node, cluster->empty() ? kNone : "one", kDomain);
      if (!cluster->empty()) racks[*cluster].push_back(node);
    }
    if (racks.empty()) return;
    compare(domains, all);
    for (const auto& [cluster, nodes] : racks) {
      Table table;
      for (const std::size_t node : nodes) {
        const Json& imex = fact_of(reports_[node].facts, "imex");
        set(table["NVLink"], node, clique_of(reports_[node]), kClique);
        if (imex.contains("daemon"))
          set(table["nvidia-imex"], node, imex.at("daemon") == true ? kRuns : "does not run",
              kDaemon);
        if (imex.contains("nodes"))
          set(table[kImexNodes], node,
              fmt::format("{} nodes ({:04x})", imex.at("nodes").size(),
                          std::hash<std::string>{}(json_text(imex.at("nodes"))) & 0xffff),
              kSetting);
      }
      if (nodes.size() > 1) compare(table, nodes);
    }
  }

  /// A node with less memory than the others has lost a module.
  void compare_memory() {
    std::vector<double> sizes;
    each_known("memory_gib", [&](std::size_t, const Json& gib) { sizes.push_back(gib); });
    if (sizes.size() < 2) return;
    const bool two = sizes.size() == 2;
    const double usual = two ? std::ranges::max(sizes) : median_of(sizes);
    each_known("memory_gib", [&](std::size_t node, const Json& gib) {
      if (gib < kSameMemory * usual)
        add(node, warning(Class::hardware,
                          fmt::format("{:.0f} GiB of memory, {:.0f} on {}", gib.get<double>(),
                                      usual, two ? "the other" : "most nodes"),
                          "inspect the memory modules"));
    });
  }

  /// Of two nodes nobody knows which is right.
  void compare_clocks() {
    std::vector<double> clocks;
    for (const NodeReport& report : reports_)
      if (report.clock_s) clocks.push_back(*report.clock_s);
    if (clocks.size() < reports_.size()) return;
    const bool two = clocks.size() == 2;
    const double usual = two ? clocks[1] : median_of(clocks);
    for (std::size_t node = 0; node < clocks.size(); ++node) {
      const double ahead_s = clocks[node] - usual;
      if (std::abs(ahead_s) < kClocksApart_s) continue;
      if (two)
        add_of_job(judge_clock(ahead_s, fmt::format("that of {}", reports_[1].host)),
                   reports_[0].host);
      else
        add(node, judge_clock(ahead_s, "most nodes"));
    }
  }

  const std::vector<NodeReport>& reports_;
  std::vector<Finding> found_;
  std::size_t alike_ = 0;
};

}  // namespace

Known<std::string> cluster_of(const NodeReport& report) {
  Known<std::string> found;
  for (const GpuReading& gpu : report.gpus.gpus)
    if (gpu.fabric_cluster && found.value_or("").empty()) found = gpu.fabric_cluster;
  return found;
}

std::vector<Finding> compare_nodes(const std::vector<NodeReport>& reports) {
  return reports.size() < 2 ? std::vector<Finding>{} : Comparison(reports).findings();
}

}  // namespace shakedown::node
