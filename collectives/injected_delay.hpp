// A hidden option of the measuring programs' tests: one rank sleeps before what it does.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "common/error.hpp"

namespace shakedown::collectives {

struct InjectedDelay {
  int rank = -1;  // -1: none
  int microseconds = 0;
};

/// --inject-delay's RANK:MICROSECONDS. Throws UsageError.
inline InjectedDelay parse_delay(const std::string& text, int ranks) {
  InjectedDelay delay;
  if (text.empty()) return delay;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%d:%d%c", &delay.rank, &delay.microseconds, &rest) != 2 ||
      delay.rank < 0 || delay.rank >= ranks || delay.microseconds < 0)
    throw UsageError(fmt::format("--inject-delay {}: not RANK:MICROSECONDS", text));
  return delay;
}

}  // namespace shakedown::collectives
