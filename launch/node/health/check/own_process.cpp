#include "launch/node/health/check/own_process.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <sstream>
#include <utility>

#include "common/error.hpp"

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRunning = -1;
constexpr int kTick_ms = 5;
constexpr double kSurelyHangs_s = 60;  // after SIGKILL: no call that only is slow lasts as long

/// Memory that a child shares with this process.
struct Unmap {
  void operator()(std::atomic<int>* page) const { munmap(page, sizeof(*page)); }
};
std::unique_ptr<std::atomic<int>, Unmap> shared_number(int value) {
  void* const page = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw InternalError("no shared memory for a child process");
  return std::unique_ptr<std::atomic<int>, Unmap>(new (page) std::atomic<int>(value));
}

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
      const ssize_t bytes = ::read(ends_[0], text.data(), text.size());
      if (bytes <= 0) {
        close(std::exchange(ends_[0], -1));
      }
      for (ssize_t done = 0; done < bytes;) {
        const ssize_t wrote =
            ::write(descriptor_, text.data() + done, static_cast<std::size_t>(bytes - done));
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

/// A process by its number and the moment at which it started: numbers are used again.
struct Process {
  pid_t pid = 0;
  std::string started;  // clock ticks since the boot
};
/// None where it has ended.
std::optional<Process> living(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  const std::string stat{std::istreambuf_iterator<char>(in), {}};
  const auto name_end = stat.rfind(')');  // "42 (name) D 1 ..."
  if (name_end == stat.npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string state, field;
  fields >> state;
  if (state == "Z" || state == "X") return std::nullopt;
  for (int number = 4; number <= 22 && fields >> field; ++number) continue;
  return Process{pid, field};
}

/// The child that an earlier call could not end, where it still has not.
struct LeftOver {
  pid_t pid = 0;
  double killed_s_ago = 0;
};
std::optional<LeftOver> left_over(const std::string& note) {
  std::ifstream in(note);
  Process named;
  double killed_s = 0;
  if (note.empty() || !(in >> named.pid >> named.started >> killed_s)) return std::nullopt;
  const auto now = living(named.pid);
  if (!now || now->started != named.started) return std::nullopt;
  return LeftOver{named.pid, static_cast<double>(std::time(nullptr)) - killed_s};
}

/// Whether it has ended within a moment.
bool ends(pid_t child) {
  constexpr int kTicks = 40;
  for (int tick = 0; tick < kTicks; ++tick, usleep(1000 * kTick_ms))
    if (waitpid(child, nullptr, WNOHANG) == child) return true;
  return false;
}

/// The code is known as soon as the work is done: the child may then hang at its end.
[[noreturn]] void work(const std::function<int()>& body, std::atomic<int>& shared) {
  const int code = body();
  std::fflush(nullptr);
  shared = code;
  _exit(code);
}

/// Of a child that has ended by itself.
std::optional<Ended> reaped(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, WNOHANG) != child) return std::nullopt;
  if (WIFEXITED(status)) return Ended{WEXITSTATUS(status), ""};
  return Ended{std::nullopt, fmt::format("it died of signal {}", WTERMSIG(status)), false, true};
}

}  // namespace

/// Replaces the note: no reader sees half of one.
void note_left_over(const std::string& note, pid_t child) {
  const auto process = living(child);
  if (!process) return;
  const std::string written = fmt::format("{}.{}", note, getpid());
  std::ofstream(written) << fmt::format("{} {} {}\n", child, process->started, std::time(nullptr));
  std::rename(written.c_str(), note.c_str());
}

std::string note_of_left_over_check() {
  const uid_t user = getuid();
  const std::string folder = user == 0 ? "/run" : fmt::format("/run/user/{}", user);
  struct stat found {};
  const bool is_ours = lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
                       found.st_uid == user && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return is_ours ? folder + "/shakedown-node_check" : "";
}

Ended run_in_own_process(double seconds, const std::function<int()>& body,
                         const std::string& note) {
  if (const auto earlier = left_over(note))
    return {std::nullopt,
            fmt::format("an earlier one (pid {}) was killed {:.0f} s ago and has not ended: it "
                        "hangs in the kernel, and no other was started",
                        earlier->pid, earlier->killed_s_ago),
            earlier->killed_s_ago > kSurelyHangs_s};
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto shared = shared_number(kRunning);
  Forwarding out(STDOUT_FILENO), errors(STDERR_FILENO);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw InternalError("no child process for the check");
  if (child == 0) {
    out.in_child();
    errors.in_child();
    work(body, *shared);
  }
  out.in_parent();
  errors.in_parent();
  while (Clock::now() < end) {
    const bool done = *shared != kRunning;
    const auto ended = done ? std::nullopt : reaped(child);
    errors.forward(0);
    out.forward(done || ended ? 0 : kTick_ms);  // all of it: it was written before the child ended
    if (ended) return *ended;
    if (done) break;
  }
  kill(child, SIGKILL);  // where it ends at all
  if (!note.empty() && !ends(child)) note_left_over(note, child);
  if (*shared != kRunning) return {*shared, ""};
  return {std::nullopt, fmt::format("it did not end within {:g} s", seconds)};
}

}  // namespace shakedown::node
