// The record: JSON lines, one self-contained flat object per line, flushed as written, so that a
// crashed run leaves what it measured. Every line has the run_id of its run, so that several jobs
// may append to one file. The schema is results/schema.json.
#pragma once

#include <array>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/exit_code.hpp"

namespace shakedown {

using Json = nlohmann::ordered_json;  // <nlohmann/json.hpp>: who makes or reads one includes it

class Record {
 public:
  /// Appends to `path`, whose folder is made; an empty path records nothing. Throws UsageError when
  /// it cannot be opened, or holds something other than a record. Only one rank of a job records.
  explicit Record(const std::string& path);
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  /// Adds one line: {"kind": kind, "run_id": id, ...fields}, after a line that was cut on a line of
  /// its own. Non-finite numbers become null. Throws InconclusiveError when the line cannot be
  /// written (disk full); the lines before it are kept whole. "end" is the last: of two threads,
  /// one may write it while the other measures.
  void write(const std::string& kind, const Json& fields);
  /// Lines of one kind, of which those that differ in nothing but `columns` are the rows of one
  /// `table` line; null in a row is a key that the line does not have.
  void write_table(const std::string& kind, const std::vector<Json>& lines,
                   const std::vector<const char*>& columns);

  const std::string& path() const { return path_; }
  /// The start, the host and random digits: no other Record has the same.
  const std::string& run_id() const { return run_id_; }

 private:
  std::string path_;
  std::string run_id_;
  int file_ = -1;
  std::mutex mutex_;
  bool ended_ = false;
};

/// The rows of a `table` line as the lines that they stand for; any other line is itself. Throws
/// UsageError where it is no such table.
std::vector<Json> lines_of(const Json& line);

/// Now, as 2026-11-21T06:23:00Z.
std::string utc_now();
/// Now, in milliseconds since 1970.
std::int64_t unix_ms();
/// `path`, or where that is empty the file that launch/mpi names in SHAKEDOWN_RECORD.
std::string record_or_launchers(const std::string& path);
/// The line that ends a run without launch/mpi, which prints the report's headline.
std::string text_of_report(const std::string& path);

/// As text. Bytes that are not UTF-8, which names of hosts, files and devices may have, become
/// U+FFFD.
std::string json_text(const Json& json, int indent = -1);

/// `fields` followed by `more`.
Json merged(Json fields, const Json& more);

// The conclusion of a program about one thing that it measured. Every PASS, FAIL and INCONCLUSIVE
// is of this type, whether it is printed, recorded or turned into an exit code.

/// What was judged. Verdict::name is then
enum class Scope {
  operation,  // "all_reduce float32 sum 8 MiB in place"
  link,       // "2->5"; "2<->5" where both directions are one figure
  rank,       // "3"
  gpu,        // its UUID
  rail,       // "1"
  node,       // a host's name
  group,      // what several ranks or nodes did together: "n1,n2"
  strategy,   // "ddp"
  job,        // the program
};

/// From best to worst. `warn` (what somebody should look at) and `unknown` (a fact that the machine
/// does not show) are no reason against what was judged. What could not be measured or judged is
/// inconclusive, never a pass.
enum class Outcome { pass, warn, unknown, inconclusive, fail };

/// Whose matter it is.
enum class Class { hardware, config, software, environment, infrastructure };

struct Verdict {
  Scope scope = Scope::job;
  std::string name;
  Outcome outcome = Outcome::pass;
  std::string cause;
  std::optional<Class> class_ = std::nullopt;  // none: not known
  std::string action = "";                     // what to do next; empty: nothing is known to help
  std::string check = "";                      // the rule that found it: "ecc-volatile"
  // Of a rate, which bin/judge concludes anew from the `metric` lines: the metric, what it was
  // compared with ("reference", "peers"), and in how many of its looks it was slow.
  std::string metric = "";
  std::string witness = "";
  int slow_looks = 0, looks = 0;
  std::vector<std::string> hosts = {};  // of who was judged, where the name does not say
};

inline constexpr std::array kScopes{Scope::operation, Scope::link,     Scope::rank,
                                    Scope::gpu,       Scope::rail,     Scope::node,
                                    Scope::group,     Scope::strategy, Scope::job};
inline constexpr std::array kOutcomes{Outcome::pass, Outcome::warn, Outcome::unknown,
                                      Outcome::inconclusive, Outcome::fail};
inline constexpr std::array kClasses{Class::hardware, Class::config, Class::software,
                                     Class::environment, Class::infrastructure};
const char* name_of(Scope scope);      // "operation"
const char* name_of(Outcome outcome);  // "PASS"
const char* name_of(Class class_);     // "HARDWARE"

/// The one of `all` that has this name; none has: none.
template <class List>
std::optional<typename List::value_type> named(const List& all, const std::string& name) {
  for (const auto each : all)
    if (name == name_of(each)) return each;
  return std::nullopt;
}

/// The fields of a "verdict" record; class and action only where they are known.
Json record_of(const Verdict& verdict);

/// "FAIL link 2->5: cause; action", for people.
std::string line_of(const Verdict& verdict);

ExitCode exit_code_of(Outcome outcome);

/// The exit code of the worst outcome; pass where there are no verdicts.
ExitCode worst(std::span<const Verdict> verdicts);

}  // namespace shakedown
