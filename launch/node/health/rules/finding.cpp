#include "launch/node/health/rules/finding.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

namespace shakedown::node {
const char* text_of(MaybeOutcome outcome) {
  if (!outcome) return "N/A";
  return name_of(outcome == Outcome::inconclusive ? Outcome::unknown : *outcome);
}

int weight_of(MaybeOutcome outcome) {
  using enum Outcome;
  constexpr MaybeOutcome kOrder[] = {std::nullopt, pass, unknown, warn, inconclusive, fail};
  return static_cast<int>(std::ranges::find(kOrder, outcome) - kOrder);
}

Judgement worst(const std::vector<Judgement>& judgements) {
  const auto found = std::ranges::max_element(
      judgements, {}, [](const Judgement& each) { return weight_of(each.outcome); });
  return found == judgements.end() ? not_known("nothing was read") : *found;
}

Finding finding_of(const std::string& check, const Judgement& judgement, Scope scope,
                   const std::string& name, const std::string& node, const std::string& subject) {
  Verdict verdict{scope,
                  name,
                  judgement.outcome.value_or(Outcome::pass),
                  judgement.cause,
                  judgement.class_,
                  judgement.action,
                  check};
  return {check, judgement.outcome, node, subject, std::move(verdict)};
}

std::string listed(const std::vector<std::string>& names) {
  if (names.size() <= kNamesListed) return fmt::format("{}", fmt::join(names, ", "));
  const std::vector<std::string> first(names.begin(), names.begin() + kNamesListed - 1);
  return fmt::format("{} and {} others", fmt::join(first, ", "), names.size() - first.size());
}

Json record_of(const Finding& finding) {
  Json fields = shakedown::record_of(finding.verdict);
  if (!finding.node.empty()) fields["host"] = finding.node;
  if (!finding.subject.empty()) fields["subject"] = finding.subject;
  return fields;
}

std::ptrdiff_t count(const std::vector<Finding>& findings, Outcome outcome) {
  const auto of = [&](Outcome each) {
    return std::ranges::count(findings, MaybeOutcome(each), &Finding::outcome);
  };
  return of(outcome) + (outcome == Outcome::unknown ? of(Outcome::inconclusive) : 0);
}

Verdict verdict_of_job(const std::vector<Finding>& findings, bool strict) {
  using enum Outcome;
  const auto passed = count(findings, pass), failed = count(findings, fail);
  const auto warned = count(findings, warn), open = count(findings, unknown);
  Verdict job{Scope::job, "node_check", pass,
              fmt::format("checks passed: {}, failed: {}, warnings: {}, unknown: {}", passed,
                          failed, warned, open)};
  if (failed > 0) {
    job.outcome = fail;
    std::set<std::string> nodes;
    for (const Finding& finding : findings)
      if (finding.outcome == fail && !finding.node.empty()) nodes.insert(finding.node);
    if (!nodes.empty())
      job.cause += fmt::format("; failed on {}", listed({nodes.begin(), nodes.end()}));
  } else if (const auto first =
                 std::ranges::find(findings, MaybeOutcome(inconclusive), &Finding::outcome);
             first != findings.end()) {
    job.outcome = inconclusive;
    job.cause += fmt::format("; {}: {}", first->check, first->verdict.cause);
    job.class_ = first->verdict.class_;
    job.action = first->verdict.action;
  } else if (passed == 0 || (strict && warned + open > 0)) {
    job.outcome = inconclusive;
    if (strict) job.cause += " (--strict)";
  }
  return job;
}

// The table.

namespace {

/// Findings that are printed on one line.
struct Line {
  const Finding* first = nullptr;
  std::vector<std::string> checks;    // one; several where they are unknown for the same cause
  std::set<std::string> nodes;        // empty name: of the job
  std::vector<std::string> subjects;  // on each of the nodes
  std::size_t findings = 1;
};

bool is_unknown(const Finding& finding) {
  return finding.outcome == Outcome::unknown || finding.outcome == Outcome::inconclusive;
}

using Key = std::tuple<std::string, MaybeOutcome, std::string, std::string>;
Key key_of(const Line& line) {
  const Finding& finding = *line.first;
  return {finding.check, finding.outcome, finding.verdict.cause, finding.verdict.action};
}
/// What nothing is known of for one cause, as of a GPU that does not answer, is one line.
Key key_of_cause(const Line& line) {
  Key key = key_of(line);
  if (is_unknown(*line.first)) std::get<0>(key).clear();
  return key;
}

void add_new(std::vector<std::string>& to, const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    if (std::ranges::find(to, text) == to.end()) to.push_back(text);
}

/// Joins each line to the first one of the same key, in the order of the first ones.
template <class KeyOf>
std::vector<Line> joined(const std::vector<Line>& lines, KeyOf&& key) {
  std::vector<Line> all;
  std::map<decltype(key(lines.front())), std::size_t> known;
  for (const Line& line : lines) {
    const auto [at, is_new] = known.emplace(key(line), all.size());
    if (is_new) {
      all.push_back(line);
      continue;
    }
    Line& first = all[at->second];
    add_new(first.checks, line.checks);
    add_new(first.subjects, line.subjects);
    first.nodes.insert(line.nodes.begin(), line.nodes.end());
    first.findings += line.findings;
  }
  return all;
}

/// A line per cause, with the nodes that have it on the same subjects.
std::vector<Line> lines_of(const std::vector<const Finding*>& findings) {
  std::vector<Line> lines;
  for (const Finding* finding : findings) {
    lines.push_back({finding, {finding->check}, {finding->node}, {}});
    if (!finding->subject.empty()) lines.back().subjects = {finding->subject};
  }
  lines = joined(lines, [](const Line& l) { return std::pair(key_of(l), l.nodes); });
  return joined(lines, [](const Line& l) { return std::pair(key_of(l), l.subjects); });
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
  for (const Line& line : joined(lines_of(findings), key_of)) {
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
  auto lines = joined(lines_of(findings), [](const Line& l) {
    return std::tuple(key_of_cause(l), l.nodes, l.subjects);
  });
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
  std::stable_partition(passed.begin(), passed.end(),
                        [](const Finding* finding) { return finding->outcome == Outcome::pass; });
  return passing(passed) + others(not_passed, nodes.size());
}
}  // namespace shakedown::node
