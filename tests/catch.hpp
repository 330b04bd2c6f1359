// One include for Catch2 2.13 (Debian 12) and 3.x (Ubuntu 24.04).
#pragma once

#include <string>
#include <vector>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& text) { return Contains(text); }
}  // namespace Catch::Matchers
#endif

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Texts = std::vector<std::string>;

// mpirun gives its ranks a pseudo-terminal; the reports are read in files.
#if CATCH_VERSION_MAJOR >= 3
inline constexpr const char* kPlainText[] = {"--colour-mode", "none"};
#else
inline constexpr const char* kPlainText[] = {"--use-colour", "no"};
#endif

namespace shakedown::test {
/// Notes that the case that runs is skipped; prints it once.
void skip_case(const std::string& why);
}  // namespace shakedown::test

// Ends a case that this machine cannot run. Catch2 has one since 3.3; this one also says in the
// last line, which tests/run adds up, how many were skipped and why.
#undef SKIP
#define SKIP(why)                    \
  do {                               \
    shakedown::test::skip_case(why); \
    return;                          \
  } while (false)
