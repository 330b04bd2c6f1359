#include "common/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace shakedown {

std::string readable_duration(double seconds) {
  const long s = std::lround(seconds);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

Progress::Progress(std::string title, long total, std::string unit, bool shown)
    : title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      shown_(shown),
      // under mpirun stderr is a pipe: launch/mpi sets this if it ends in a terminal
      terminal_(isatty(STDERR_FILENO) != 0 || std::getenv("SHAKEDOWN_TERMINAL") != nullptr) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(long done, const std::string& remark) {
  if (!shown_) return;
  const auto now = Clock::now();
  const std::chrono::duration<double> since_last = now - last_;
  if (since_last.count() < (terminal_ ? 0.5 : 10.0)) return;
  last_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done) / elapsed;
  std::string line = fmt::format("{}: {}/{} {}, {:.3g}/s", title_, done, total_, unit_, rate);
  if (done > 0 && done < total_)
    line += fmt::format(", {} left", readable_duration(static_cast<double>(total_ - done) / rate));
  if (!remark.empty()) line += ", " + remark;
  if (terminal_)
    fmt::print(stderr, "\r{}\033[K", line);
  else
    fmt::print(stderr, "{}\n", line);
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace shakedown
