// A check in a process of its own: it ends in time whatever its calls do.
#include "launch/node/health/check/own_process.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("the code of a check in its own process is that of the check", "[node][own_process]") {
  CHECK(run_in_own_process(20, [] { return 0; }).code == 0);
  CHECK(run_in_own_process(20, [] { return 3; }).code == 3);
  const auto exits = [] { std::_Exit(5); };
  CHECK(run_in_own_process(20, [&]() -> int {
          exits();
          return 0;
        }).code == 5);
}

TEST_CASE("a check that cannot end does not hold its caller up, and one that dies is no pass",
          "[node][own_process][closed]") {
  const auto start = std::chrono::steady_clock::now();
  // As a process in uninterruptible sleep: it makes no step more.
  const Ended stopped = run_in_own_process(0.2, [] {
    std::raise(SIGSTOP);
    return 0;
  });
  CHECK_FALSE(stopped.code);
  CHECK(stopped.why == "it did not end within 0.2 s");
  const Ended died = run_in_own_process(20, [] {
    std::signal(SIGUSR2, SIG_DFL);
    std::raise(SIGUSR2);
    return 0;
  });
  CHECK_FALSE(died.code);
  CHECK(died.why == "it died of signal " + std::to_string(SIGUSR2));
  CHECK(seconds_since(start) < 10);
}

}  // namespace shakedown::node
