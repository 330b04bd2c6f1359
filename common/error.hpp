// The errors of what was measured and of the code itself; common/usage_error.hpp has the user's.
#pragma once

#include <string>

#include "common/ensure.hpp"
#include "common/usage_error.hpp"

namespace shakedown {

/// Wrong data.
struct FailError : Error {
  explicit FailError(const std::string& what) : Error(ExitCode::fail, what) {}
};
/// What was to be measured could not be.
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

}  // namespace shakedown
