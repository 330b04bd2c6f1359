// What every program does: injected faults, --version, signals, progress, calls that do not return.
#include "common/program.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <thread>

#include "common/mpi_session.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "common/watch.hpp"
#include "tests/catch.hpp"

namespace shakedown {
namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

/// A process that runs `body`.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    alarm(60);
    _exit(body());
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Its exit code, or -N where signal N ended it.
  int end() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = 0;
    return WIFSIGNALED(status_) ? -WTERMSIG(status_) : WEXITSTATUS(status_);
  }

 private:
  pid_t pid_;
  int status_ = 0;
};

int signalled_twice(milliseconds between) {
  raise(SIGINT);
  std::this_thread::sleep_for(between);
  raise(SIGUSR2);
  return 0;
}

void block() {
  for (;;) pause();
}

}  // namespace

TEST_CASE("a fault is a kind that the program knows and a rank that there is", "[fault]") {
  const std::vector<FaultKind> kinds{FaultKind::product, FaultKind::slow};
  CHECK_FALSE(parse_fault("", kinds, 2).has_value());
  const auto fault = parse_fault("slow:1", kinds, 2);
  REQUIRE(fault.has_value());
  CHECK(fault->kind == FaultKind::slow);
  CHECK(fault->rank == 1);
  CHECK(line_of(*fault) == "fault injected: slow on rank 1");
  for (const char* wrong : {"slow", "slow:", "slow:2", "slow:-1", "slow:1x", "memory:0", "1:slow"})
    CHECK_THROWS_AS(parse_fault(wrong, kinds, 2), UsageError);
  CHECK_THROWS_WITH(parse_fault("slow:1:3sms", kinds, 2),
                    ContainsSubstring("without an amount in this program"));
}

TEST_CASE("how slow a rank is made: SMs that are held, or idle time", "[fault]") {
  const std::vector<FaultKind> kinds{FaultKind::product, FaultKind::slow};
  const auto parsed = [&](const std::string& value) {
    return *parse_fault(value, kinds, 2, FaultAmount::of_slow);
  };
  CHECK(parsed("slow:1").held_sms == 0);
  CHECK(parsed("slow:1:3sms").held_sms == 3);
  CHECK(parsed("slow:1:2.5%").idle_share == Approx(0.025));
  CHECK(line_of(parsed("slow:1:3sms")) == "fault injected: slow on rank 1, 3 of its SMs held");
  CHECK(line_of(parsed("slow:0:5%")) == "fault injected: slow on rank 0, idle for 5 %");
  for (const char* wrong :
       {"slow:1:", "slow:1:3", "slow:1:0sms", "slow:1:5sms", "slow:1:2.5sms", "slow:1:0%",
        "slow:1:5x%", "slow:1:-5%", "slow:1:nan%", "product:1:5%", "slow:2:5%"})
    CHECK_THROWS_AS(parsed(wrong), UsageError);
}

// --version, and hosts whose versions differ.

TEST_CASE("--version names the program, its revision and its libraries", "[version]") {
  const std::string text = version_text("train");
  CHECK_THAT(text, Catch::Matchers::StartsWith("train (Shakedown) "));
  for (const std::string word : {"revision ", "backends ", "mpi "})
    CHECK_THAT(text, ContainsSubstring("\n" + word));
  CHECK_THAT(text, ContainsSubstring(git_revision()));
}

TEST_CASE("hosts with other versions are named once, with what differs", "[version]") {
  const Versions usual{{"git_revision", "abc"}, {"driver", "580.65"}, {"versions.nccl", "2.27.3"}};
  Versions old = usual;
  old[1].second = "570.86";
  Versions older = old;
  older[2].second = "2.21.5";
  CHECK(differing_versions({"n1", "n2"}, {usual, usual}).empty());
  const Versions fewer(usual.begin(), usual.end() - 1);  // one has loaded a library, the other not
  for (const auto& [first, second, difference] :
       {std::tuple{usual, fewer, "none instead of 2.27.3"},
        {fewer, usual, "2.27.3 instead of none"}})
    CHECK_THAT(differing_versions({"n1", "n2"}, {first, second}),
               ContainsSubstring(std::string("rank 1 on n2 (versions.nccl ") + difference + ")"));
  CHECK(
      differing_versions({"n1", "n1", "n2", "n2", "n3"}, {usual, usual, old, old, older}) ==
      "versions differ from those of rank 0 on n1: rank 2 on n2 (driver 570.86 instead of 580.65), "
      "rank 4 on n3 (driver 570.86 instead of 580.65, versions.nccl 2.21.5 instead of 2.27.3)");
}

TEST_CASE("stop signals: a second one ends the process, unless it is of the same stop") {
  const auto noted = [](milliseconds between) {
    return [between] {
      const StopSignals signals;
      signalled_twice(between);
      return signals.received() == "SIGINT" ? 0 : 1;
    };
  };
  Child second(noted(milliseconds(kSameStopMs)));
  Child while_a_file_blocks([] {
    const LastWords last_words(block, std::chrono::minutes(1));
    return signalled_twice(milliseconds(kSameStopMs));
  });
  CHECK(Child(noted(milliseconds(0))).end() == 0);
  CHECK(second.end() == -SIGUSR2);
  CHECK(while_a_file_blocks.end() == -SIGUSR2);
}

TEST_CASE("stop signals: a record that blocks does not keep the process alive") {
  int words[2];
  REQUIRE(pipe(words) == 0);
  Child child([&] {
    dup2(words[1], STDERR_FILENO);
    const LastWords last_words(block, milliseconds(1));
    raise(SIGTERM);
    block();
    return 0;
  });
  close(words[1]);
  char text[200]{};
  CHECK(read(words[0], text, sizeof(text) - 1) > 0);
  close(words[0]);
  CHECK(child.end() == -SIGTERM);
  CHECK(std::string(text) ==
        "error: stopped by SIGTERM; the end of the record was not written within 0.001 s: its file "
        "blocks\n");
}

// The progress line: rate, and what is left of this work and of the run.

TEST_CASE("progress: what is left, of this work and of the run", "[progress]") {
  const auto text = [](long done, Following following) {
    return text_of_progress("epoch 2/4", done, 100, "steps", 20, following);
  };
  CHECK(text(40, {}) == "epoch 2/4: 40/100 steps, 2/s, 0:30 left");
  // two more epochs of 50 s, as this one is expected to take; or of 100 s, as the first took
  CHECK(text(40, {2, 0}) == "epoch 2/4: 40/100 steps, 2/s, 0:30 left, 2:10 to the end of the run");
  CHECK(text(40, {2, 100}) ==
        "epoch 2/4: 40/100 steps, 2/s, 0:30 left, 3:50 to the end of the run");
  CHECK(text(100, {2, 100}) == "epoch 2/4: 100/100 steps, 5/s, 3:20 to the end of the run");
  CHECK(text(0, {2, 0}) == "epoch 2/4: 0/100 steps, 0/s");
}

TEST_CASE("a call that does not return is noticed while it is made, once") {
  std::atomic<int> noticed = 0;
  CallWatch watch(0.05, [&] { ++noticed; });
  watch.during([&] {
    CHECK(watch.is_calling());
    while (noticed == 0) std::this_thread::sleep_for(1ms);
  });
  CHECK_FALSE(watch.is_calling());
  CHECK(watch.was_late());
  watch.during([] { std::this_thread::sleep_for(120ms); });
  CHECK_FALSE(watch.was_late());
  CHECK(noticed == 1);
}

TEST_CASE("calls that return are not noticed, however many, nor the time between them") {
  std::atomic<int> noticed = 0;
  {
    CallWatch watch(0.4, [&] { ++noticed; });
    for (int call = 0; call < 30; ++call) watch.during([] { std::this_thread::sleep_for(15ms); });
    CHECK_THROWS_AS(watch.during([] { throw std::runtime_error("failed"); }), std::runtime_error);
    std::this_thread::sleep_for(500ms);
  }
  CHECK(noticed == 0);
  CallWatch watch(INFINITY, [] { FAIL("expired"); });  // no call is too long for that
  watch.during([] { std::this_thread::sleep_for(10ms); });
}

}  // namespace shakedown
