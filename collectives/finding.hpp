// What a program concludes of a link, an operation, a node or the whole job.
#pragma once

#include <string>

#include "common/error.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {

/// What a user should know of, and what it means for the exit code.
struct Finding {
  std::string scope;  // "operation", "link", "rank", "rail", "node", "job"
  std::string name;   // "all_reduce float32 sum 8 MiB in place", "2->5", "3", "rail 1", a host
  ExitCode code = ExitCode::pass;  // pass, fail or inconclusive
  std::string cause;
};

/// PASS, FAIL or INCONCLUSIVE.
inline const char* verdict_of(ExitCode code) {
  switch (code) {
    case ExitCode::pass: return "PASS";
    case ExitCode::fail: return "FAIL";
    default: return "INCONCLUSIVE";
  }
}

/// The fields of a "verdict" record.
inline Json record_of(const Finding& finding) {
  return {{"scope", finding.scope},
          {"name", finding.name},
          {"verdict", verdict_of(finding.code)},
          {"cause", finding.cause}};
}

}  // namespace shakedown::collectives
