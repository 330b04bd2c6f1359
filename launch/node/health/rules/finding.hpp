// What a check of a node concludes: one line of node_check's table, one verdict of its record.
#pragma once

#include <string>
#include <vector>

#include "common/record.hpp"

namespace shakedown::node {

/// What one check concludes about one thing. No outcome: the node has nothing that the check looks
/// at, which is no pass. Unknown: what the check needs could not be read. Inconclusive: neither
/// could what nothing else can show.
using MaybeOutcome = std::optional<Outcome>;
/// "N/A", "WARN". Inconclusive is UNKNOWN too in a table: the job's line names what decided.
const char* text_of(MaybeOutcome outcome);

struct Judgement {
  MaybeOutcome outcome = Outcome::unknown;
  std::string cause;  // what was found
  std::optional<Class> class_ = std::nullopt;
  std::string action = "";  // what to do
};
inline Judgement passed(std::string cause) { return {Outcome::pass, std::move(cause)}; }
inline Judgement not_applicable(std::string cause) { return {std::nullopt, std::move(cause)}; }
inline Judgement not_known(std::string cause, std::string action = "") {
  return {Outcome::unknown, std::move(cause), std::nullopt, std::move(action)};
}
inline Judgement undecided(Class class_, std::string cause, std::string action) {
  return {Outcome::inconclusive, std::move(cause), class_, std::move(action)};
}
inline Judgement warning(Class class_, std::string cause, std::string action) {
  return {Outcome::warn, std::move(cause), class_, std::move(action)};
}
inline Judgement failure(Class class_, std::string cause, std::string action) {
  return {Outcome::fail, std::move(cause), class_, std::move(action)};
}
/// Of findings next to one another: what is unknown matters less than a warning.
int weight_of(MaybeOutcome outcome);
/// The worst of them; the first of those that are alike. Unknown where there is none.
Judgement worst(const std::vector<Judgement>& judgements);

struct Finding {
  std::string check;  // "ecc-volatile"
  MaybeOutcome outcome = Outcome::unknown;
  std::string node;     // a host's name; empty: of the job
  std::string subject;  // on the node, for people: "GPU 3"; empty: the node itself
  Verdict verdict;
};
/// `name` is the verdict's: a GPU's UUID, a node's or the program's name.
Finding finding_of(const std::string& check, const Judgement& judgement, Scope scope,
                   const std::string& name, const std::string& node = "",
                   const std::string& subject = "");

/// "n0, n1, n2, n3 and 5 others".
inline constexpr std::size_t kNamesListed = 5;  // without others
std::string listed(const std::vector<std::string>& names);

/// The fields of a "verdict" record.
Json record_of(const Finding& finding);

/// The findings as people read them: "PASS  check  what was found", passing lines that are alike
/// once; what does not apply; the others, worst first, under the names of their nodes, with
/// " -> what to do".
std::string findings_table(const std::vector<Finding>& findings);

/// Those of this outcome; inconclusive ones are unknown, too.
std::ptrdiff_t count(const std::vector<Finding>& findings, Outcome outcome);

/// Of the program: FAIL where a finding is; INCONCLUSIVE where one is, where nothing passed at all
/// (then nothing was looked at), and where `strict` and one is a warning or unknown.
Verdict verdict_of_job(const std::vector<Finding>& findings, bool strict);

}  // namespace shakedown::node
