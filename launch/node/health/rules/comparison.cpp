#include "launch/node/health/rules/comparison.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "launch/node/health/rules/majority.hpp"

namespace shakedown::node {
namespace {

class Comparison {
 public:
  Comparison(const std::vector<std::string>& hosts, const std::vector<Comparables>& nodes)
      : hosts_(hosts), nodes_(nodes) {}

  Compared run() {
    std::set<std::string> labels;
    for (const Comparables& node : nodes_)
      for (const auto& [label, comparable] : node) labels.insert(label);
    std::size_t alike = 0;
    for (const std::string& label : labels) alike += compare(label);
    return {std::move(found_), alike};
  }

 private:
  using ByValue = std::map<std::string, std::vector<std::size_t>>;  // numbers of nodes

  /// Whether all nodes have the same value.
  bool compare(const std::string& label) {
    ByValue by_value;
    std::vector<std::string> known;
    JudgeDifference judge = nullptr;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (const auto found = nodes_[i].find(label); found != nodes_[i].end()) {
        by_value[found->second.value].push_back(i);
        known.push_back(found->second.value);
        judge = found->second.judge;
      }
    report_unknown(label, known.size());
    if (by_value.size() == 1) return known.size() == nodes_.size();
    if (const auto most = majority_of(known))
      blame({label, "", "", *most}, by_value, judge);
    else
      name_all(label, by_value, judge);
    return false;
  }

  void report_unknown(const std::string& label, std::size_t known) {
    for (std::size_t i = 0; known < nodes_.size() && i < nodes_.size(); ++i)
      if (!nodes_[i].contains(label))
        add(i, not_known(fmt::format("{} is not known here, but on {} of {} nodes", label, known,
                                     nodes_.size())));
  }

  void blame(Difference difference, const ByValue& by_value, JudgeDifference judge) {
    const std::size_t usual = by_value.at(difference.most).size();
    const bool all_others = usual + 1 == nodes_.size();
    for (const auto& [value, nodes] : by_value) {
      if (value == difference.most) continue;
      difference.mine = value;
      difference.cause = fmt::format("{}: {} here, {} on {}{} others", difference.label, value,
                                     difference.most, all_others ? "the " : "", usual);
      for (std::size_t i : nodes) add(i, judge(difference));
    }
  }

  void name_all(const std::string& label, const ByValue& by_value, JudgeDifference judge) {
    std::vector<std::string> parts;
    for (const auto& [value, nodes] : by_value) {
      std::vector<std::string> hosts;
      for (std::size_t i : nodes) hosts.push_back(hosts_[i]);
      parts.push_back(fmt::format("{} on {}", value, listed(hosts)));
    }
    const std::string cause = fmt::format("{} differs: {}", label, fmt::join(parts, "; "));
    found_.push_back(
        finding_of(kNodesAlike, judge({label, cause, "", ""}), Scope::job, "node_check"));
  }

  void add(std::size_t node, const Judgement& judgement) {
    found_.push_back(finding_of(kNodesAlike, judgement, Scope::node, hosts_[node], hosts_[node]));
  }

  const std::vector<std::string>& hosts_;
  const std::vector<Comparables>& nodes_;
  std::vector<Finding> found_;
};

}  // namespace

Compared compare(const std::vector<std::string>& hosts, const std::vector<Comparables>& nodes) {
  return Comparison(hosts, nodes).run();
}

}  // namespace shakedown::node
