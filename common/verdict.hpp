// The conclusion of a program about one thing that it measured. Every PASS, FAIL and INCONCLUSIVE
// is of this type, whether it is printed, recorded or turned into an exit code.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/error.hpp"
#include "common/record.hpp"

namespace shakedown {

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
