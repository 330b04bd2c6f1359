#include "common/error.hpp"

namespace shakedown {

void throw_library_error(const char* library, const char* expression, const char* file, int line,
                         const std::string& reason) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + library + " " +
                      expression + ": " + reason);
}

void throw_broken_invariant(const char* expression, const char* file, int line,
                            const std::string& message) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + expression + ": " +
                      message);
}

}  // namespace shakedown
