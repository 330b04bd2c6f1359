// The judge as programs use it: its options, the data that they name, and what ranks give it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/judge/judge.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/record.hpp"

namespace shakedown::judge {

struct JudgeOptions {
  std::string reference;  // a file or folder; empty: the embedded ones
  std::string limits;     // a file; empty: the embedded ones
};
/// --reference and --limits.
void declare_options(OptionSet& options, JudgeOptions& values);

/// Reads the files where there are any: only the rank that judges makes one.
class Court {
 public:
  /// Throws UsageError that names option, file and key.
  explicit Court(const JudgeOptions& options);

  Limits& limits() { return limits_; }
  const Limits& limits() const { return limits_; }
  const References& references() const { return references_; }
  /// A PASS by limits of the user's names their file.
  Judgement judge(const Evidence& evidence, const Request& request) const;

 private:
  References references_;
  Limits limits_;
  std::string limits_file_;
};

// bin/judge's work: records are read and judged again.

struct RejudgeOptions {
  JudgeOptions court;
  std::vector<std::string> paths, rates;
  std::string stage, record, reference;
  bool strict = false;
};
void declare_options(OptionSet& options, RejudgeOptions& values);

/// Prints and records the judgement, and writes the reference. Returns the job's exit code.
ExitCode rejudge(const RejudgeOptions& options);

// The files of results/reference that the programs carry: the Makefile writes embedded.cpp in
// BUILD.

/// Name ("limits.json") and text of each.
std::map<std::string, std::string> embedded_files();

}  // namespace shakedown::judge

namespace shakedown {

// Rank 0 judges what all ranks measured.

class Judging {
 public:
  /// The files that the options name are read on rank 0; throws UsageError there. `unasked`:
  /// judge::Request's, where they name none.
  Judging(const judge::JudgeOptions& options, const MpiSession& session, std::string program,
          bool unasked = true);

  /// A bar of the user's on a metric or glob, in its unit.
  void bar(const std::string& metric, std::optional<double> least, std::optional<double> most);
  /// Records it. `id`: under which `slow` returns it; none: it is not measured again.
  void add(const judge::Observation& observation, Record& record, std::optional<int> id = {});
  /// A conclusion about something other than a rate, on these nodes.
  void add(const Verdict& verdict, const std::vector<std::string>& nodes);

  /// On rank 0 alone.
  const judge::Limits& limits() const { return court_->limits(); }

  /// The ids of what was slow in every look and has looks left; the same on every rank. Collective.
  std::vector<int> slow();
  /// Of everything added so far. On rank 0; a PASS elsewhere.
  judge::Judgement judgement() const;

 private:
  const MpiSession& session_;
  std::string program_;
  bool unasked_;                       // the user named nothing to compare with
  std::optional<judge::Court> court_;  // on rank 0
  judge::Evidence evidence_;
  std::vector<std::optional<int>> ids_;  // of the observations
};

/// Records the findings and the job's verdict, with these fields.
void record_judgement(const judge::Judgement& judgement, Record& record, const Json& fields);

}  // namespace shakedown
