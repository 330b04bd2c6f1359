// A check in a process of its own. A call can hang in the kernel, of a driver or of a file system
// whose server is gone, where no signal ends it, and a process does not end before its threads.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

namespace shakedown::node {

struct Ended {
  std::optional<int> code;  // none: `why`
  std::string why;          // "it did not end within 5 s", "it died of signal 11"
  bool hangs = false;       // in the kernel: it was killed long ago, and still has not ended
  bool died = false;        // of a signal that is not ours
};
/// Runs `body`, which returns an exit code, in a child process and passes on what it prints. A
/// child that has not ended after `seconds` is killed and left to itself: where it lives on in the
/// kernel, later calls with this `note`, a file in which it is named, report it and start no other.
/// To be called before this process has threads.
Ended run_in_own_process(double seconds, const std::function<int()>& body,
                         const std::string& note = "");

/// Names a process of which SIGKILL was no end in the note.
void note_left_over(const std::string& note, pid_t child);

/// Where that note is: in a folder that nobody but this user can write to; empty: there is none.
std::string note_of_left_over_check();

}  // namespace shakedown::node
