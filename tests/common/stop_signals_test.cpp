#include "common/stop_signals.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/catch.hpp"

using namespace shakedown;

TEST_CASE("stop signals: a second one ends the process, unless it is of the same stop") {
  const auto end_of = [](std::chrono::milliseconds between) {
    const pid_t child = fork();
    if (child == 0) {
      const StopSignals signals;
      raise(SIGTERM);
      std::this_thread::sleep_for(between);
      raise(SIGUSR2);
      _exit(signals.received() == "SIGTERM" ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  };
  CHECK(end_of(std::chrono::milliseconds(0)) == 0);
  CHECK(end_of(std::chrono::milliseconds(StopSignals::kSameStopMs)) == -SIGUSR2);
}
