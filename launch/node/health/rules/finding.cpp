#include "launch/node/health/rules/finding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/error.hpp"

namespace shakedown::node {

const char* text_of(MaybeOutcome outcome) {
  if (!outcome) return "N/A";
  return name_of(outcome == Outcome::inconclusive ? Outcome::unknown : *outcome);
}

int weight_of(MaybeOutcome outcome) {
  if (!outcome) return 0;
  switch (*outcome) {
    case Outcome::pass: return 1;
    case Outcome::unknown: return 2;
    case Outcome::warn: return 3;
    case Outcome::inconclusive: return 4;
    case Outcome::fail: return 5;
  }
  throw InternalError("unknown outcome");
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

Counts count(const std::vector<Finding>& findings) {
  Counts counts;
  for (const Finding& finding : findings) {
    counts.pass += finding.outcome == Outcome::pass;
    counts.warn += finding.outcome == Outcome::warn;
    counts.unknown +=
        finding.outcome == Outcome::unknown || finding.outcome == Outcome::inconclusive;
    counts.fail += finding.outcome == Outcome::fail;
  }
  return counts;
}

Verdict verdict_of_job(const std::vector<Finding>& findings, bool strict) {
  const Counts n = count(findings);
  Verdict job{Scope::job, "node_check", Outcome::pass,
              fmt::format("checks passed: {}, failed: {}, warnings: {}, unknown: {}", n.pass,
                          n.fail, n.warn, n.unknown)};
  if (n.fail > 0) {
    job.outcome = Outcome::fail;
    std::set<std::string> nodes;
    for (const Finding& finding : findings)
      if (finding.outcome == Outcome::fail && !finding.node.empty()) nodes.insert(finding.node);
    if (!nodes.empty())
      job.cause += fmt::format("; failed on {}", listed({nodes.begin(), nodes.end()}));
  } else if (const auto open = std::ranges::find(findings, MaybeOutcome(Outcome::inconclusive),
                                                 &Finding::outcome);
             open != findings.end()) {
    job.outcome = Outcome::inconclusive;
    job.cause += fmt::format("; {}: {}", open->check, open->verdict.cause);
    job.class_ = open->verdict.class_;
    job.action = open->verdict.action;
  } else if (n.pass == 0 || (strict && n.warn + n.unknown > 0)) {
    job.outcome = Outcome::inconclusive;
    if (strict) job.cause += " (--strict)";
  }
  return job;
}

}  // namespace shakedown::node
