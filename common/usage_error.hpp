// What every error is, and what the user must change: an option, a file, a batch. Most files throw
// these alone. Errors carry the exit code that the program will end with; rank and host are added
// where it ends (common/program), so nothing below needs to know them.
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

struct UsageError : Error {
  explicit UsageError(const std::string& what) : Error(ExitCode::usage, what) {}
};
/// The requested memory is not available.
struct OutOfMemory : UsageError {
  using UsageError::UsageError;
};
/// A batch does not fit on some rank; thrown on every rank.
struct BatchTooLarge : OutOfMemory {
  using OutOfMemory::OutOfMemory;
};
/// The system does not give what a file holds: what it holds may be sound.
struct ReadError : UsageError {
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

}  // namespace shakedown
