#include "launch/node/health/rules/finding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace shakedown::node {
namespace {

/// Findings that are printed on one line.
struct Line {
  const Finding* first = nullptr;
  std::vector<std::string> checks;    // one; several where they are unknown for the same cause
  std::set<std::string> nodes;        // empty name: of the job
  std::vector<std::string> subjects;  // on each of the nodes
  std::size_t findings = 0;
};

using Key =
    std::tuple<std::string, MaybeOutcome, std::string, std::string>;  // check, cause, action
Key key_of(const Finding& finding) {
  return {finding.check, finding.outcome, finding.verdict.cause, finding.verdict.action};
}

/// Joins each line to the first one of the same key, in the order of the first ones.
template <class KeyOf, class Join>
std::vector<Line> joined(const std::vector<Line>& lines, KeyOf&& key, Join&& join) {
  std::vector<Line> all;
  std::map<decltype(key(lines.front())), std::size_t> known;
  for (const Line& line : lines) {
    const auto [at, is_new] = known.emplace(key(line), all.size());
    if (is_new)
      all.push_back(line);
    else
      join(all[at->second], line);
  }
  return all;
}

void join_subjects(Line& line, const Line& other) {
  for (const std::string& subject : other.subjects)
    if (std::ranges::find(line.subjects, subject) == line.subjects.end())
      line.subjects.push_back(subject);
  line.findings += other.findings;
}
void join_nodes(Line& line, const Line& other) {
  line.nodes.insert(other.nodes.begin(), other.nodes.end());
  line.findings += other.findings;
}

/// A line per cause, with the nodes that have it on the same subjects.
std::vector<Line> lines_of(const std::vector<const Finding*>& findings) {
  std::vector<Line> lines;
  for (const Finding* finding : findings) {
    lines.push_back({finding, {finding->check}, {finding->node}, {}, 1});
    if (!finding->subject.empty()) lines.back().subjects = {finding->subject};
  }
  lines = joined(
      lines, [](const Line& l) { return std::pair(key_of(*l.first), l.nodes); }, join_subjects);
  return joined(
      lines, [](const Line& l) { return std::pair(key_of(*l.first), l.subjects); }, join_nodes);
}

/// What nothing is known of for one cause, as of a GPU that does not answer, is one line.
std::vector<Line> with_checks_joined(const std::vector<Line>& lines) {
  constexpr std::size_t kMany = 2;
  const auto key = [](const Line& l) {
    const Verdict& verdict = l.first->verdict;
    const bool unknown =
        l.first->outcome == Outcome::unknown || l.first->outcome == Outcome::inconclusive;
    return std::tuple(unknown ? "" : l.first->check, l.first->outcome, verdict.cause,
                      verdict.action, l.nodes, l.subjects);
  };
  std::map<decltype(key(lines.front())), std::size_t> counts;
  for (const Line& line : lines) ++counts[key(line)];
  return joined(
      lines,
      [&](const Line& l) {
        const auto cause = key(l);
        return std::pair(cause, counts[cause] < kMany ? l.checks : std::vector<std::string>{});
      },
      [](Line& line, const Line& other) { line.checks.push_back(other.checks.front()); });
}

std::string printed(const Line& line, const std::string& where) {
  const Finding& finding = *line.first;
  const Verdict& verdict = finding.verdict;
  const bool several = line.checks.size() > 1;
  return fmt::format("{:8} {:18} {}{}{}{}{}\n", text_of(finding.outcome),
                     several ? fmt::format("{} checks", line.checks.size()) : finding.check,
                     where.empty() ? "" : where + ": ", verdict.cause,
                     several ? fmt::format(" ({})", fmt::join(line.checks, ", ")) : "",
                     verdict.action.empty() ? "" : " -> ", verdict.action);
}

std::string passing(const std::vector<const Finding*>& findings) {
  std::string text;
  auto lines = joined(
      lines_of(findings), [](const Line& l) { return key_of(*l.first); }, join_nodes);
  for (const Line& line : lines) {
    const bool of_gpus = !line.first->subject.empty();
    text += printed(line,
                    of_gpus ? fmt::format("{} GPU{}", line.findings, line.findings == 1 ? "" : "s")
                    : line.nodes.size() > 1 ? fmt::format("{} nodes", line.nodes.size())
                                            : "");
  }
  return text;
}

std::string heading_of(const std::set<std::string>& nodes, std::size_t of) {
  if (nodes == std::set<std::string>{""}) return "the job";
  if (nodes.size() == of && of > kNamesListed) return fmt::format("all {} nodes", of);
  return listed({nodes.begin(), nodes.end()});
}

std::string others(const std::vector<const Finding*>& findings, std::size_t nodes) {
  std::string text, heading;
  auto lines = with_checks_joined(lines_of(findings));
  std::ranges::stable_sort(lines, [](const Line& a, const Line& b) {
    return a.nodes != b.nodes ? a.nodes < b.nodes
                              : weight_of(a.first->outcome) > weight_of(b.first->outcome);
  });
  for (const Line& line : lines) {
    const std::string of = heading_of(line.nodes, nodes);
    if (of != heading) text += of + ":\n";
    heading = of;
    text += printed(line, listed(line.subjects));
  }
  return text;
}

}  // namespace

std::string findings_table(const std::vector<Finding>& findings) {
  std::vector<const Finding*> passed, not_passed;
  std::set<std::string> nodes;
  for (const Finding& finding : findings) {
    (finding.outcome <= Outcome::pass ? passed : not_passed).push_back(&finding);
    if (!finding.node.empty()) nodes.insert(finding.node);
  }
  std::ranges::stable_partition(
      passed, [](const Finding* finding) { return finding->outcome == Outcome::pass; });
  return passing(passed) + others(not_passed, nodes.size());
}

}  // namespace shakedown::node
