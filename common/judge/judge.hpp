// The one judge. Observations, limits, boards and references go in, verdicts come out: a pure
// function, linear in the observations, the same whatever their order.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/judge/limits.hpp"
#include "common/judge/observation.hpp"
#include "common/judge/references.hpp"

namespace shakedown::judge {

/// A conclusion about something other than a rate: a program's `verdict` line, or how a run of an
/// acceptance ended.
struct Statement {
  Verdict verdict;
  std::string stage;
  std::vector<std::string> nodes;
  bool accepted = false;  // a WARN or UNKNOWN that the site knows
};

struct Evidence {
  std::vector<Observation> observations;
  std::vector<Statement> statements;
  std::vector<std::string> nodes;  // to be judged; empty: the hosts of the observations
};

struct Request {
  std::string program;  // the name of the job's verdict
  std::vector<std::string>
      rates;             // classes that must have a witness; empty: those that were measured
  bool strict = false;   // WARN and UNKNOWN make a node INCONCLUSIVE
  bool unasked = false;  // of a benchmark: a class without a witness is a WARN
};

enum class Witness { none, bar, reference, first_principles, peers };
const char* name_of(Witness witness);  // "reference"

/// One subject's metric, as its most reliable witness judges it.
struct Judged {
  const Limit* limit = nullptr;  // of the limits that it was judged by
  std::size_t observation = 0;   // index of its last look
  Outcome outcome = Outcome::pass;
  Witness witness = Witness::none;
  double r = 0;  // slower than usual, by the witness, of the look that cleared or the best
  double usual = kUnknown;  // in the metric's unit
  double floor = 0;         // r from which on it fails
  int slow_looks = 0, looks = 0;
  int taken = 1;      // number of its latest look, whether it judges or not
  std::string cause;  // why it fails, or is not judged
  std::optional<Class> class_;
  std::string action;
};

/// The smallest slow-down of a class of rates that would have been found in 99 of 100 units.
struct Found {
  std::string rates, metric;
  Witness witness = Witness::none;
  double slow_down = 0;
  double warns_from = 0;  // what is found as a warning from here on; 0: nothing is
};

/// A class of rates of nodes that had no witness.
struct Unjudged {
  std::string rates;
  std::vector<std::string> nodes;
  std::string why, action;
};

struct Judgement {
  std::vector<Judged> judged;  // of each subject and metric
  std::vector<Verdict>
      findings;                // what did not pass, worst first; rates by GPU, link, node or group
  std::vector<Verdict> nodes;  // one per node
  Verdict job;
  std::vector<Found> would_have_found;
  std::vector<Unjudged> unjudged;
};

Judgement judge(const Evidence& evidence, const References& references, const Limits& limits,
                const Boards& boards, const Request& request);

/// The last step of judge(): fills in all but judged and would_have_found. `named`: whether the
/// user named the references. `missed`: by metric, why none of them compares.
void conclude(const Evidence& evidence, bool named,
              const std::map<std::string, std::string>& missed, const Request& request,
              Judgement& judgement);

/// Indices of observations that should be measured again: slow in every look that judges, and with
/// looks left.
std::vector<std::size_t> suspects(const Judgement& judgement);

/// "would have found at 99 %: products 1.4 % more cycles, memory 3.9 %, ..."; empty: nothing.
std::string sentence_of(const std::vector<Found>& found);

// The evidence read back: records of programs, or the folder of an acceptance.

/// Calls `use` for the lines of a record that are of one of these kinds; the others are not parsed.
/// `cut`: the last line that is half a record, as a program that was killed leaves it; without it,
/// that is an error. Throws UsageError that names file and line: it cannot be read, is no record,
/// or `use` refuses it.
void for_lines(const std::string& path, const std::vector<const char*>& kinds,
               const std::function<void(const Json& line)>& use, std::size_t* cut = nullptr);

/// What was read, and from which file each observation is: relative to the folder that was named.
struct Read {
  Evidence evidence;
  std::vector<std::string> records;
  std::vector<std::string> remarks = {};  // lines to be printed
};

/// Of files and folders. Of each record: `metric` lines, and `verdict` lines that are no rate's; a
/// record without an `end` line is a statement that it is incomplete. A folder with runs.jsonl is
/// an acceptance's: its `stage` lines name the records, its `node` lines the nodes and their hosts,
/// and its verdicts are the only statements. `stage`: of that one alone; "": of all. Throws
/// UsageError that names what cannot be read, or a line that is no record.
Read read(const std::vector<std::string>& paths, const std::string& stage = "");

// A judgement as the lines of bin/judge's record.

/// Calls `write(kind, fields)` for each: a `figure` per subject and metric, with what it was
/// compared with; a `verdict` per finding, then per node, then the job's; `found` and `unjudged`.
void write_lines(const Read& read, const Judgement& judgement,
                 const std::function<void(const std::string& kind, const Json& fields)>& write);

/// Findings and the job's verdict, a line each, for people; then what would have been found.
std::string text_of(const Judgement& judgement);
/// A line per node whose reason is a statement of a program, which has printed it itself.
std::string text_of_stated(const Judgement& judgement);

}  // namespace shakedown::judge
