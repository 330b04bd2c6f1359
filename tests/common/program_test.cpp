// What every program does: injected faults, --version, signals, progress, calls that do not return.
#include "common/program.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "common/mpi_session.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "common/watch.hpp"
#include "tests/catch.hpp"
#include "tests/support/transcript.hpp"

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

/// Of a case of program.txt, on 2 ranks.
std::string said_of(const std::string& given) {
  std::istringstream in(given);
  std::string what, value;
  in >> what;
  if (what == "progress") {
    long done = 0;
    Following following;
    in >> done >> following.rounds >> following.seconds;
    return text_of_progress("epoch 2/4", done, 100, "steps", 20, following);
  }
  in >> value;
  const auto amount = what == "fault" ? FaultAmount::none : FaultAmount::of_slow;
  try {
    const auto fault = parse_fault(value, {FaultKind::product, FaultKind::slow}, 2, amount);
    return fault ? line_of(*fault) : "none";
  } catch (const UsageError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("faults and the progress line", "[fault][progress]") {
  test::check_transcript("tests/common/program.txt", said_of);
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
