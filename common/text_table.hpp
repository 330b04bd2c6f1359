// Tables and paragraphs for people.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace shakedown {

inline constexpr int kTextWidth = 80;  // of a paragraph on a terminal

/// A column's heading on two lines, and its width without the blank before it.
struct Column {
  const char* over;
  const char* head;
  int width;
};

/// The first cell left-aligned, the others right-aligned.
std::string row(const std::vector<Column>& columns, const std::vector<std::string>& cells);
std::string heading(const std::vector<Column>& columns);

/// Whether a person reads this descriptor (STDOUT_FILENO or STDERR_FILENO) on a terminal: its own,
/// or launch/mpi's, which lists its descriptors that are terminals in SHAKEDOWN_TERMINAL.
bool on_terminal(int descriptor);

/// kTextWidth where standard output is a terminal; else 0: scripts match lines, so that a line in a
/// file or pipe is whole.
int text_width();

inline constexpr char kNoBreak = '\x1f';  // a blank at which no line ends

/// Appends `text`, whose first line continues one of `at` columns, in lines of at most `width`,
/// with `indent` blanks before all further ones. Its blanks of kNoBreak stay.
void append_wrapped(std::string& out, const std::string& text, std::size_t at, std::size_t indent,
                    std::size_t width = kTextWidth);

/// The text in lines of at most `width` columns (0: any number), broken at blanks, not before %;
/// those after the first are indented by `indent`. No newline at the end.
std::string wrapped(const std::string& text, int indent = 0, int width = text_width());

/// "label     text", wrapped, and a newline.
std::string labelled(const std::string& label, const std::string& text);

// A progress line for long work: one line redrawn on a terminal, a plain line now and then else.

/// Work that follows: each round takes these seconds; 0: not known yet, as long as this one.
struct Following {
  int rounds = 0;
  double seconds = 0;
};

/// "epoch 2/90: 120/500 steps, 3.2/s, 1:59 left, 3:51:22 to the end of the run", as it is after
/// `elapsed_s`; the last part only where work follows.
std::string text_of_progress(const std::string& title, long done, long total,
                             const std::string& unit, double elapsed_s, Following following);

class Progress {
 public:
  /// `shown` is false on all ranks but one. `unit` names what is counted ("steps"). What was done
  /// before this run took `earlier_s`.
  Progress(std::string title, long total, std::string unit, bool shown, Following following = {},
           double earlier_s = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call as often as convenient. Redraws at most twice a second; prints lines, each whole, every
  /// ten seconds at first and every minute later, so that a batch job's log stays short.
  void update(long done, const std::string& remark = "");

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  long total_;
  std::string unit_;
  bool shown_;
  Following following_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point last_ = Clock::now();
  Clock::time_point start_;  // less what earlier runs took
};

/// "1 rank", "3 ranks", "2 classes" of the plural "es".
std::string counted(long count, const char* what, const char* plural = "s");
/// "4:05" or "1:02:03".
std::string readable_duration(double seconds);

}  // namespace shakedown
