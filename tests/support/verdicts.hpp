// Verdicts as texts that a test compares at one look: "FAIL GPU-1 HARDWARE".
#pragma once

#include <string>
#include <vector>

#include "common/record.hpp"
#include "tests/catch.hpp"

namespace shakedown::test {

inline std::string brief(const Verdict& verdict) {
  return std::string(name_of(verdict.outcome)) + " " + verdict.name +
         (verdict.class_ ? std::string(" ") + name_of(*verdict.class_) : "");
}

inline Texts briefs(const std::vector<Verdict>& verdicts) {
  Texts all;
  for (const Verdict& verdict : verdicts) all.push_back(brief(verdict));
  return all;
}

}  // namespace shakedown::test
