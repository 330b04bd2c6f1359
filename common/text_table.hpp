// Tables and paragraphs for people.
#pragma once

#include <string>
#include <vector>

namespace shakedown {

inline constexpr int kTextWidth = 80;  // of a paragraph: a terminal's, and a batch log's

/// A column's heading on two lines, and its width without the blank before it.
struct Column {
  const char* over;
  const char* head;
  int width;
};

/// The first cell left-aligned, the others right-aligned.
std::string row(const std::vector<Column>& columns, const std::vector<std::string>& cells);
std::string heading(const std::vector<Column>& columns);

/// The text in lines of at most kTextWidth columns, broken at blanks, not before %; those after the
/// first are indented by `indent`. No newline at the end.
std::string wrapped(const std::string& text, int indent = 0);

/// "label     text", wrapped, and a newline.
std::string labelled(const std::string& label, const std::string& text);

}  // namespace shakedown
