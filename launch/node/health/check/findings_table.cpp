#include "launch/node/health/check/findings_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace shakedown::node {
namespace {

constexpr std::size_t kNamesShown = 4;

/// What the findings that are printed on one line have in common.
using Key = std::tuple<std::string, Severity, std::string, std::string>;  // check, cause, action
Key key_of(const Finding& finding) {
  return {finding.check, finding.severity, finding.verdict.cause, finding.verdict.action};
}

struct Line {
  const Finding* first = nullptr;
  std::set<std::string> nodes;
  std::vector<std::string> subjects;  // in the order found, each once
  std::size_t findings = 0;
};

/// In the order in which each line's first finding came.
std::vector<Line> lines_of(const std::vector<const Finding*>& findings) {
  std::vector<Line> lines;
  std::map<Key, std::size_t> known;
  for (const Finding* finding : findings) {
    const auto [at, is_new] = known.emplace(key_of(*finding), lines.size());
    if (is_new) lines.push_back({finding, {}, {}, 0});
    Line& line = lines[at->second];
    line.nodes.insert(finding->node);
    ++line.findings;
    if (!finding->subject.empty() &&
        std::ranges::find(line.subjects, finding->subject) == line.subjects.end())
      line.subjects.push_back(finding->subject);
  }
  return lines;
}

std::string names(const std::vector<std::string>& all) {
  if (all.size() <= kNamesShown) return fmt::format("{}", fmt::join(all, ", "));
  const std::vector<std::string> first(all.begin(), all.begin() + kNamesShown);
  return fmt::format("{} and {} others", fmt::join(first, ", "), all.size() - kNamesShown);
}

std::string text_of(const Finding& finding, const std::string& where) {
  const Verdict& verdict = finding.verdict;
  return fmt::format("{:8} {:18} {}{}{}{}\n", name_of(finding.severity), finding.check,
                     where.empty() ? "" : where + ": ", verdict.cause,
                     verdict.action.empty() ? "" : " -> ", verdict.action);
}

std::string passing(const std::vector<const Finding*>& findings) {
  std::string text;
  for (const Line& line : lines_of(findings)) {
    const bool of_gpus = !line.first->subject.empty();
    text += text_of(*line.first,
                    of_gpus ? fmt::format("{} GPU{}", line.findings, line.findings == 1 ? "" : "s")
                    : line.nodes.size() > 1 ? fmt::format("{} nodes", line.nodes.size())
                                            : "");
  }
  return text;
}

std::string others(const std::vector<const Finding*>& findings) {
  std::string text, heading;
  auto lines = lines_of(findings);
  std::ranges::stable_sort(lines, [](const Line& a, const Line& b) {
    return a.nodes != b.nodes ? a.nodes < b.nodes : a.first->severity > b.first->severity;
  });
  for (const Line& line : lines) {
    const std::vector<std::string> nodes(line.nodes.begin(), line.nodes.end());
    const std::string of = nodes == std::vector<std::string>{""} ? "all nodes" : names(nodes);
    if (of != heading) text += of + ":\n";
    heading = of;
    text += text_of(*line.first, names(line.subjects));
  }
  return text;
}

}  // namespace

std::string findings_table(const std::vector<Finding>& findings) {
  std::vector<const Finding*> passed, not_passed;
  for (const Finding& finding : findings)
    (finding.severity == Severity::pass ? passed : not_passed).push_back(&finding);
  return passing(passed) + others(not_passed);
}

}  // namespace shakedown::node
