// Tables and paragraphs for people.
#pragma once

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

/// The text in lines of at most `width` columns (0: any number), broken at blanks, not before %;
/// those after the first are indented by `indent`. No newline at the end.
std::string wrapped(const std::string& text, int indent = 0, int width = text_width());

/// "label     text", wrapped, and a newline.
std::string labelled(const std::string& label, const std::string& text);

}  // namespace shakedown
