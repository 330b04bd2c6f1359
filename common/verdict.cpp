#include "common/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shakedown {

const char* name_of(Scope scope) {
  switch (scope) {
    case Scope::operation: return "operation";
    case Scope::link: return "link";
    case Scope::rank: return "rank";
    case Scope::gpu: return "gpu";
    case Scope::rail: return "rail";
    case Scope::node: return "node";
    case Scope::group: return "group";
    case Scope::strategy: return "strategy";
    case Scope::job: return "job";
  }
  throw InternalError("unknown scope");
}

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::pass: return "PASS";
    case Outcome::warn: return "WARN";
    case Outcome::unknown: return "UNKNOWN";
    case Outcome::inconclusive: return "INCONCLUSIVE";
    case Outcome::fail: return "FAIL";
  }
  throw InternalError("unknown outcome");
}

const char* name_of(Class class_) {
  switch (class_) {
    case Class::hardware: return "HARDWARE";
    case Class::config: return "CONFIG";
    case Class::software: return "SOFTWARE";
    case Class::environment: return "ENVIRONMENT";
    case Class::infrastructure: return "INFRASTRUCTURE";
  }
  throw InternalError("unknown class");
}

Json record_of(const Verdict& verdict) {
  Json fields{{"scope", name_of(verdict.scope)},
              {"name", verdict.name},
              {"verdict", name_of(verdict.outcome)},
              {"cause", verdict.cause}};
  if (verdict.class_) fields["class"] = name_of(*verdict.class_);
  if (!verdict.action.empty()) fields["action"] = verdict.action;
  if (!verdict.check.empty()) fields["check"] = verdict.check;
  if (!verdict.metric.empty()) fields["metric"] = verdict.metric;
  if (!verdict.witness.empty()) fields["witness"] = verdict.witness;
  if (verdict.looks > 0)
    fields.update({{"slow_looks", verdict.slow_looks}, {"looks", verdict.looks}});
  if (!verdict.hosts.empty()) fields["hosts"] = verdict.hosts;
  return fields;
}

std::string line_of(const Verdict& verdict) {
  const bool acts = verdict.outcome != Outcome::pass && !verdict.action.empty();
  return fmt::format("{} {} {}: {}{}{}", name_of(verdict.outcome), name_of(verdict.scope),
                     verdict.name, verdict.cause, acts ? "; " : "", acts ? verdict.action : "");
}

ExitCode exit_code_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::pass:
    case Outcome::warn:
    case Outcome::unknown: return ExitCode::pass;
    case Outcome::inconclusive: return ExitCode::inconclusive;
    case Outcome::fail: return ExitCode::fail;
  }
  throw InternalError("unknown outcome");
}

ExitCode worst(std::span<const Verdict> verdicts) {
  const auto found =
      std::max_element(verdicts.begin(), verdicts.end(),
                       [](const Verdict& a, const Verdict& b) { return a.outcome < b.outcome; });
  return found == verdicts.end() ? ExitCode::pass : exit_code_of(found->outcome);
}

}  // namespace shakedown
