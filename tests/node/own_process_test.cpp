// A check in a process of its own: it ends in time whatever its calls do.
#include "launch/node/health/check/own_process.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "tests/catch.hpp"
#include "tests/node/made_up_host.hpp"

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

TEST_CASE("a check that hangs in the kernel is reported by later ones, which start no other",
          "[node][own_process][closed]") {
  const Tree tree;
  const std::string note = tree.root() + "/note";
  const auto stopped = [] {
    std::raise(SIGSTOP);
    return 0;
  };
  CHECK(run_in_own_process(0.2, stopped, note).why == "it did not end within 0.2 s");
  CHECK(run_in_own_process(
            20, [] { return 0; }, note)
            .code == 0);  // SIGKILL has ended that one
  // This process, in the place of one that it cannot end.
  note_left_over(note, getpid());
  const Ended recent = run_in_own_process(
      20, [] { return 0; }, note);
  CHECK_FALSE(recent.code);
  CHECK_FALSE(recent.hangs);
  CHECK_THAT(recent.why, ContainsSubstring(fmt::format("pid {}", getpid())) &&
                             ContainsSubstring("no other was started"));
  std::string pid, started;
  REQUIRE(std::ifstream(note) >> pid >> started);
  const auto noted = [&](const std::string& since, long long killed) {
    std::ofstream(note) << fmt::format("{} {} {}\n", pid, since, killed);
    return run_in_own_process(
        20, [] { return 0; }, note);
  };
  CHECK(noted(started, std::time(nullptr) - 100).hangs);
  CHECK(noted("1", 0).code == 0);  // another process has the number now
  std::ofstream(note) << "nonsense";
  CHECK(run_in_own_process(
            20, [] { return 0; }, note)
            .code == 0);
}

}  // namespace shakedown::node
