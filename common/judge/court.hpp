// The judge as programs use it: its options, and the data that they name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/judge/judge.hpp"
#include "common/options.hpp"

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
