// bin/judge's work: records are read and judged again.
#pragma once

#include <string>
#include <vector>

#include "common/judge/court.hpp"

namespace shakedown::judge {

struct RejudgeOptions {
  JudgeOptions court;
  std::vector<std::string> paths, rates;
  std::string stage, record, reference;
  bool strict = false;
};
void declare_options(OptionSet& options, RejudgeOptions& values);

/// Prints and records the judgement, and writes the reference. Returns the job's exit code.
ExitCode rejudge(const RejudgeOptions& options);

}  // namespace shakedown::judge
