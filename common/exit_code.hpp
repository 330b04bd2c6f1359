#pragma once

namespace shakedown {

/// The meaning of a program's exit status, the same for every program.
enum class ExitCode : int {
  pass = 0,
  fail = 1,          // wrong data, below the bar, ranks that diverge
  usage = 2,         // an option, a file or a batch that the user must change
  inconclusive = 3,  // could not measure: time-out, node lost, disk full
  internal = 4,      // a bug or a library error
  stopped = 5,       // ended by a signal, state saved
};

}  // namespace shakedown
