// Errors carry the exit code that the program will end with. Rank and host are added where the
// program ends (common/program), so nothing below needs to know them.
#pragma once

#include <stdexcept>
#include <string>

#include "common/exit_code.hpp"

namespace shakedown {

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

struct FailError : Error {
  explicit FailError(const std::string& what) : Error(ExitCode::fail, what) {}
};
struct UsageError : Error {
  explicit UsageError(const std::string& what) : Error(ExitCode::usage, what) {}
};
/// The requested memory is not available.
struct OutOfMemory : UsageError {
  using UsageError::UsageError;
};
/// What `read` returns of a file that an option names. Errors that begin with the file begin with
/// the option then.
template <class Read>
auto named_by(const char* option, Read&& read) {
  try {
    return read();
  } catch (const UsageError& error) {
    throw UsageError(std::string(option) + " " + error.what());
  }
}
struct InconclusiveError : Error {
  explicit InconclusiveError(const std::string& what) : Error(ExitCode::inconclusive, what) {}
};
/// An operation between ranks did not end: a rank has stopped, died or fallen behind.
struct TimeoutError : InconclusiveError {
  using InconclusiveError::InconclusiveError;
};
struct InternalError : Error {
  explicit InternalError(const std::string& what) : Error(ExitCode::internal, what) {}
};

/// Throws InternalError "file:line: LIBRARY expression: reason".
[[noreturn]] void throw_library_error(const char* library, const char* expression, const char* file,
                                      int line, const std::string& reason);

/// Throws InternalError "file:line: expression: message".
[[noreturn]] void throw_broken_invariant(const char* expression, const char* file, int line,
                                         const std::string& message);

}  // namespace shakedown

/// States what the code relies on; a violation is a bug here, not the user's mistake.
#define ENSURE(condition, message)                                                    \
  do {                                                                                \
    if (!(condition))                                                                 \
      ::shakedown::throw_broken_invariant(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
