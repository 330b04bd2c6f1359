// What the judged rates and the statements amount to: findings, a verdict per node, the job's.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/judge/evidence.hpp"
#include "common/judge/judge.hpp"

namespace shakedown::judge {

/// Fills in all but judged and would_have_found. `named`: whether the user named the references.
/// `missed`: by metric, why none of them compares.
void conclude(const Evidence& evidence, bool named,
              const std::map<std::string, std::string>& missed, const Request& request,
              Judgement& judgement);

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
