#include "common/mpi_session.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "tests/catch.hpp"

using namespace shakedown;

namespace {

using std::chrono::milliseconds;

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
