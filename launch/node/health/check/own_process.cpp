#include "launch/node/health/check/own_process.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <utility>

#include "common/error.hpp"

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRunning = -1;
constexpr int kTick_ms = 5;

/// Written by the child when its work is done: it may then hang at its end.
class SharedCode {
 public:
  SharedCode()
      : page_(mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) throw InternalError("no shared memory for a child process");
    code_ = new (page_) std::atomic<int>(kRunning);
  }
  ~SharedCode() { munmap(page_, sizeof(std::atomic<int>)); }
  SharedCode(const SharedCode&) = delete;
  SharedCode& operator=(const SharedCode&) = delete;

  void set(int code) { *code_ = code; }
  std::optional<int> get() const {
    const int code = *code_;
    return code == kRunning ? std::nullopt : std::optional(code);
  }

 private:
  void* page_;
  std::atomic<int>* code_;
};

/// What the child writes to one of its descriptors arrives at that of this process.
class Forwarding {
 public:
  explicit Forwarding(int descriptor) : descriptor_(descriptor) {
    if (pipe(ends_.data()) != 0) throw InternalError("no pipe for a child process");
  }
  ~Forwarding() {
    for (const int end : ends_)
      if (end >= 0) close(end);
  }
  Forwarding(const Forwarding&) = delete;
  Forwarding& operator=(const Forwarding&) = delete;

  void in_child() {
    dup2(ends_[1], descriptor_);
    for (int& end : ends_) close(std::exchange(end, -1));
  }
  void in_parent() { close(std::exchange(ends_[1], -1)); }
  bool is_open() const { return ends_[0] >= 0; }

  /// Forwards what there is; where there is nothing, waits for it.
  void forward(int wait_ms) {
    pollfd poll_{ends_[0], POLLIN, 0};
    std::array<char, 4096> text;
    while (is_open() && poll(&poll_, 1, wait_ms) > 0) {
      const ssize_t bytes = read(ends_[0], text.data(), text.size());
      if (bytes <= 0) {
        close(std::exchange(ends_[0], -1));
      }
      for (ssize_t done = 0; done < bytes;) {
        const ssize_t wrote =
            write(descriptor_, text.data() + done, static_cast<std::size_t>(bytes - done));
        if (wrote <= 0) return;  // nobody reads it
        done += wrote;
      }
      wait_ms = 0;
    }
  }

 private:
  const int descriptor_;
  std::array<int, 2> ends_{-1, -1};
};

[[noreturn]] void work(const std::function<int()>& body, SharedCode& shared) {
  const int code = body();
  std::fflush(nullptr);
  shared.set(code);
  _exit(code);
}

/// Of a child that has ended by itself.
std::optional<Ended> reaped(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, WNOHANG) != child) return std::nullopt;
  if (WIFEXITED(status)) return Ended{WEXITSTATUS(status), ""};
  return Ended{std::nullopt, fmt::format("it died of signal {}", WTERMSIG(status))};
}

}  // namespace

Ended run_in_own_process(double seconds, const std::function<int()>& body) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  SharedCode shared;
  Forwarding out(STDOUT_FILENO), errors(STDERR_FILENO);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw InternalError("no child process for the check");
  if (child == 0) {
    out.in_child();
    errors.in_child();
    work(body, shared);
  }
  out.in_parent();
  errors.in_parent();
  while (Clock::now() < end) {
    const auto code = shared.get();
    const auto ended = code ? std::nullopt : reaped(child);
    errors.forward(0);
    out.forward(code || ended ? 0 : kTick_ms);  // all of it: it was written before the child ended
    if (ended) return *ended;
    if (code) break;
  }
  kill(child, SIGKILL);  // where it ends at all
  if (const auto code = shared.get()) return {*code, ""};
  return {std::nullopt, fmt::format("it did not end within {:g} s", seconds)};
}

}  // namespace shakedown::node
