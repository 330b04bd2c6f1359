#include "launch/node/health/check/check.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "common/error.hpp"

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSurelyHangs_s = 60;  // after SIGKILL: no call that only is slow lasts as long

/// From a child to this process.
class Pipe {
 public:
  Pipe() {
    if (pipe(ends_.data()) != 0) throw InternalError("no pipe for a child process");
  }
  ~Pipe() {
    for (const int end : ends_)
      if (end >= 0) close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reading() const { return ends_[0]; }  // -1: nothing comes any more
  int writing() const { return ends_[1]; }
  void close_reading() { close(std::exchange(ends_[0], -1)); }
  void close_writing() { close(std::exchange(ends_[1], -1)); }

  /// What there is, to a descriptor of this process.
  void forward(int to) {
    std::array<char, 4096> text;
    const ssize_t bytes = ::read(reading(), text.data(), text.size());
    if (bytes <= 0) close_reading();
    for (ssize_t done = 0; done < bytes;) {
      const ssize_t wrote = ::write(to, text.data() + done, static_cast<std::size_t>(bytes - done));
      if (wrote <= 0) return;  // nobody reads it
      done += wrote;
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// What a child prints, and the exit code that it reports before it ends: it may hang at its end.
struct Pipes {
  Pipe out, errors, code;

  [[noreturn]] void run_in_child(const std::function<int()>& body) {
    dup2(out.writing(), STDOUT_FILENO);
    dup2(errors.writing(), STDERR_FILENO);
    for (Pipe* pipe : {&out, &errors}) {
      pipe->close_reading();
      pipe->close_writing();
    }
    const int found = body();
    std::fflush(nullptr);
    [[maybe_unused]] const auto wrote = ::write(code.writing(), &found, sizeof(found));
    _exit(found);
  }

  /// Forwards all that the child prints until it has reported its code, has died, or until then.
  std::optional<int> follow(Clock::time_point end) {
    for (Pipe* pipe : {&out, &errors, &code}) pipe->close_writing();
    while (Clock::now() < end) {
      std::array<pollfd, 3> ready{
          {{out.reading(), POLLIN, 0}, {errors.reading(), POLLIN, 0}, {code.reading(), POLLIN, 0}}};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      poll(ready.data(), ready.size(), static_cast<int>(left.count()));
      int found = 0;
      if (ready[0].revents != 0)
        out.forward(STDOUT_FILENO);
      else if (ready[1].revents != 0)
        errors.forward(STDERR_FILENO);
      else if (ready[2].revents != 0)  // what was printed before it has arrived
        return ::read(code.reading(), &found, sizeof(found)) > 0 ? std::optional(found)
                                                                 : std::nullopt;
    }
    return std::nullopt;
  }
};

/// The status of a child that has ended by then.
std::optional<int> reap(pid_t child, Clock::time_point end) {
  int status = 0;
  for (;;) {
    if (waitpid(child, &status, WNOHANG) == child) return status;
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

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

/// Since the boot, as a note of this boot: the time of day may be set meanwhile.
double up_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

/// Where the child that an earlier call could not end still has not.
std::optional<Ended> left_over(const std::string& note) {
  std::ifstream in(note);
  Process named;
  double killed_s = 0;
  if (note.empty() || !(in >> named.pid >> named.started >> killed_s)) return std::nullopt;
  const auto now = living(named.pid);
  if (!now || now->started != named.started) return std::nullopt;
  const double ago_s = up_s() - killed_s;
  return Ended{std::nullopt,
               fmt::format("an earlier one (pid {}) was killed {:.0f} s ago and has not ended: it "
                           "hangs in the kernel, and no other was started",
                           named.pid, ago_s),
               ago_s > kSurelyHangs_s};
}

}  // namespace

/// Replaces the note: no reader sees half of one.
void note_left_over(const std::string& note, pid_t child) {
  const auto process = living(child);
  if (!process) return;
  const std::string written = fmt::format("{}.{}", note, getpid());
  std::ofstream(written) << fmt::format("{} {} {:.3f}\n", child, process->started, up_s());
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
  if (const auto earlier = left_over(note)) return *earlier;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  Pipes pipes;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw InternalError("no child process for the check");
  if (child == 0) pipes.run_in_child(body);
  const auto code = pipes.follow(end);
  if (const auto status = code ? std::nullopt : reap(child, end)) {
    if (WIFEXITED(*status)) return {WEXITSTATUS(*status), ""};
    return {std::nullopt, fmt::format("it died of signal {}", WTERMSIG(*status)), false, true};
  }
  kill(child, SIGKILL);  // where it ends at all
  if (!note.empty() && !reap(child, Clock::now() + std::chrono::milliseconds(200)))
    note_left_over(note, child);
  if (code) return {code, ""};
  return {std::nullopt, fmt::format("it did not end within {:g} s", seconds)};
}

}  // namespace shakedown::node
