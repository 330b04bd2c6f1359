#include "launch/node/health/rules/finding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace shakedown::node {
namespace {

Outcome outcome_of(Severity severity) {
  switch (severity) {
    case Severity::not_applicable:
    case Severity::pass: return Outcome::pass;
    case Severity::fail: return Outcome::fail;
    case Severity::unknown:
    case Severity::warn: break;
  }
  return Outcome::inconclusive;
}

}  // namespace

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::not_applicable: return "N/A";
    case Severity::pass: return shakedown::name_of(Outcome::pass);
    case Severity::fail: return shakedown::name_of(Outcome::fail);
    case Severity::warn: return "WARN";
    case Severity::unknown: return "UNKNOWN";
  }
  throw InternalError("unknown severity");
}

Judgement worst(const std::vector<Judgement>& judgements) {
  const auto found = std::max_element(
      judgements.begin(), judgements.end(), [](const Judgement& a, const Judgement& b) {
        return std::pair(a.severity, a.decides) < std::pair(b.severity, b.decides);
      });
  return found == judgements.end() ? not_known("nothing was read") : *found;
}

Finding finding_of(const std::string& check, const Judgement& judgement, Scope scope,
                   const std::string& name, const std::string& node, const std::string& subject) {
  return {check,
          judgement.severity,
          node,
          subject,
          {scope, name, outcome_of(judgement.severity), judgement.cause, judgement.class_,
           judgement.action},
          judgement.decides};
}

std::string listed(const std::vector<std::string>& names) {
  if (names.size() <= kNamesListed) return fmt::format("{}", fmt::join(names, ", "));
  const std::vector<std::string> first(names.begin(), names.begin() + kNamesListed - 1);
  return fmt::format("{} and {} others", fmt::join(first, ", "), names.size() - first.size());
}

Json record_of(const Finding& finding) {
  Json fields = shakedown::record_of(finding.verdict);
  fields["check"] = finding.check;
  fields["severity"] = name_of(finding.severity);
  if (finding.decides) fields["decides"] = true;
  if (!finding.node.empty()) fields["host"] = finding.node;
  return fields;
}

Counts count(const std::vector<Finding>& findings) {
  Counts counts;
  for (const Finding& finding : findings) switch (finding.severity) {
      case Severity::not_applicable: break;
      case Severity::pass: ++counts.pass; break;
      case Severity::unknown: ++counts.unknown; break;
      case Severity::warn: ++counts.warn; break;
      case Severity::fail: ++counts.fail; break;
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
      if (finding.severity == Severity::fail && !finding.node.empty()) nodes.insert(finding.node);
    if (!nodes.empty())
      job.cause += fmt::format("; failed on {}", listed({nodes.begin(), nodes.end()}));
  } else if (const auto open = std::ranges::find(findings, true, &Finding::decides);
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
