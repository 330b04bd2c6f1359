// What a check of a node concludes: one line of node_check's table, one verdict of its record.
#pragma once

#include <string>
#include <vector>

#include "common/record.hpp"
#include "common/verdict.hpp"

namespace shakedown::node {

/// From best to worst. `not_applicable`: the node has nothing that the check looks at, which is no
/// pass. `unknown`: what the check needs could not be read, so it did not pass.
enum class Severity { not_applicable, pass, unknown, warn, fail };
const char* name_of(Severity severity);  // "WARN"

/// What one check concludes about one thing.
struct Judgement {
  Severity severity = Severity::unknown;
  std::string cause;  // what was found
  std::optional<Class> class_ = std::nullopt;
  std::string action = "";  // what to do
  bool decides = false;     // unknown, and nothing else can show that the node is healthy
};
inline Judgement passed(std::string cause) { return {Severity::pass, std::move(cause)}; }
inline Judgement not_applicable(std::string cause) {
  return {Severity::not_applicable, std::move(cause)};
}
inline Judgement not_known(std::string cause, std::string action = "") {
  return {Severity::unknown, std::move(cause), std::nullopt, std::move(action)};
}
inline Judgement undecided(Class class_, std::string cause, std::string action) {
  return {Severity::unknown, std::move(cause), class_, std::move(action), true};
}
inline Judgement warning(Class class_, std::string cause, std::string action) {
  return {Severity::warn, std::move(cause), class_, std::move(action)};
}
inline Judgement failure(Class class_, std::string cause, std::string action) {
  return {Severity::fail, std::move(cause), class_, std::move(action)};
}
/// The worst of them; the first of those that are alike. Unknown where there is none.
Judgement worst(const std::vector<Judgement>& judgements);

struct Finding {
  std::string check;  // "ecc-volatile"
  Severity severity = Severity::unknown;
  std::string node;     // a host's name; empty: of the job
  std::string subject;  // on the node, for people: "GPU 3"; empty: the node itself
  Verdict verdict;
  bool decides = false;  // as of its judgement
};
/// `name` is the verdict's: a GPU's UUID, a node's or the program's name.
Finding finding_of(const std::string& check, const Judgement& judgement, Scope scope,
                   const std::string& name, const std::string& node = "",
                   const std::string& subject = "");

/// "n0, n1, n2, n3 and 5 others".
inline constexpr std::size_t kNamesListed = 5;  // without others
std::string listed(const std::vector<std::string>& names);

/// The fields of a "verdict" record. A warning, and what is unknown, is INCONCLUSIVE there.
Json record_of(const Finding& finding);

struct Counts {
  int pass = 0, unknown = 0, warn = 0, fail = 0;
};
Counts count(const std::vector<Finding>& findings);

/// Of the program: FAIL where a finding is; where `strict`, INCONCLUSIVE where one is a warning or
/// unknown; strict or not, where an unknown one decides, and where nothing passed at all: then
/// nothing was looked at.
Verdict verdict_of_job(const std::vector<Finding>& findings, bool strict);

}  // namespace shakedown::node
