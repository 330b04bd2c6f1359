// What the code relies on: a violation is a bug here, not the user's mistake.
#pragma once

#include <string>

namespace shakedown {

/// Throws InternalError "file:line: LIBRARY expression: reason".
[[noreturn]] void throw_library_error(const char* library, const char* expression, const char* file,
                                      int line, const std::string& reason);

/// Throws InternalError "file:line: expression: message".
[[noreturn]] void throw_broken_invariant(const char* expression, const char* file, int line,
                                         const std::string& message);

}  // namespace shakedown

#define ENSURE(condition, message)                                                    \
  do {                                                                                \
    if (!(condition))                                                                 \
      ::shakedown::throw_broken_invariant(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
