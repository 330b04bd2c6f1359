// A check in a process of its own. A call can hang in the kernel, of a driver or of a file system
// whose server is gone, where no signal ends it, and a process does not end before its threads.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace shakedown::node {

struct Ended {
  std::optional<int> code;  // none: `why`
  std::string why;          // "it did not end within 5 s", "it died of signal 11"
};
/// Runs `body`, which returns an exit code, in a child process and passes on what it prints. A
/// child that has not ended after `seconds` is killed and left to itself. To be called before this
/// process has threads.
Ended run_in_own_process(double seconds, const std::function<int()>& body);

}  // namespace shakedown::node
