#include "common/text_table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace shakedown {

std::string row(const std::vector<Column>& columns, const std::vector<std::string>& cells) {
  std::string text = fmt::format("{:<{}}", cells.front(), columns.front().width);
  for (std::size_t i = 1; i < cells.size(); ++i)
    text += fmt::format(" {:>{}}", cells[i], columns[i].width);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string heading(const std::vector<Column>& columns) {
  std::vector<std::string> over, head;
  for (const Column& column : columns) {
    over.emplace_back(column.over);
    head.emplace_back(column.head);
  }
  return row(columns, over) + row(columns, head);
}

bool on_terminal(int descriptor) {
  const char* const launcher = std::getenv("SHAKEDOWN_TERMINAL");
  return isatty(descriptor) != 0 ||
         (launcher != nullptr &&
          std::string(launcher).find(std::to_string(descriptor)) != std::string::npos);
}

int text_width() { return on_terminal(STDOUT_FILENO) ? kTextWidth : 0; }

void append_wrapped(std::string& out, const std::string& text, std::size_t at, std::size_t indent,
                    std::size_t width) {
  bool starts_line = true;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::size_t length = end - begin;
    if (!starts_line && at + 1 + length > width) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!starts_line) {
      out += ' ';
      ++at;
    }
    out += text.substr(begin, length);
    at += length;
    starts_line = end < text.size() && text[end] == '\n';
    if (starts_line) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    }
    begin = end + 1;
  }
}

std::string wrapped(const std::string& text, int indent, int width) {
  if (width == 0) return text;
  std::string kept = text;
  for (std::size_t at = 0; (at = kept.find(" %", at)) != std::string::npos;) kept[at] = kNoBreak;
  std::string lines;
  append_wrapped(lines, kept, 0, static_cast<std::size_t>(indent), static_cast<std::size_t>(width));
  std::replace(lines.begin(), lines.end(), kNoBreak, ' ');
  return lines;
}

std::string labelled(const std::string& label, const std::string& text) {
  return wrapped(fmt::format("{:<9} {}", label, text), 10) + "\n";
}

std::string counted(long count, const char* what, const char* plural) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : plural);
}

std::string readable_duration(double seconds) {
  const long s = std::lround(seconds);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string text_of_progress(const std::string& title, long done, long total,
                             const std::string& unit, double elapsed_s, Following following) {
  const double rate = static_cast<double>(done) / elapsed_s;
  std::string line = fmt::format("{}: {}/{} {}, {:.3g}/s", title, done, total, unit, rate);
  if (done <= 0 || done > total) return line;
  const double left = static_cast<double>(total - done) / rate;
  if (done < total) line += fmt::format(", {} left", readable_duration(left));
  if (following.rounds > 0) {
    const double round = following.seconds > 0 ? following.seconds : elapsed_s + left;
    line += fmt::format(", {} to the end of the run",
                        readable_duration(left + following.rounds * round));
  }
  return line;
}

Progress::Progress(std::string title, long total, std::string unit, bool shown, Following following,
                   double earlier_s)
    : title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      shown_(shown),
      following_(following),
      terminal_(on_terminal(STDERR_FILENO)),
      start_(last_ - std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(earlier_s))) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(long done, const std::string& remark) {
  if (!shown_) return;
  const auto now = Clock::now();
  const std::chrono::duration<double> since_last = now - last_;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  if (since_last.count() < (terminal_ ? 0.5 : std::clamp(elapsed / 6, 10.0, 60.0))) return;
  last_ = now;
  std::string line = text_of_progress(title_, done, total_, unit_, elapsed, following_);
  if (!remark.empty()) line += ", " + remark;
  if (terminal_)
    fmt::print(stderr, "\r{}\033[K", line);
  else
    fmt::print(stderr, "{}\n", line);
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace shakedown
