// Tables for people: a left-aligned first column, the others right-aligned.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace shakedown {

/// A column's heading on two lines, and its width without the blank before it.
struct Column {
  const char* over;
  const char* head;
  int width;
};

inline std::string row(const std::vector<Column>& columns, const std::vector<std::string>& cells) {
  std::string text = fmt::format("{:<{}}", cells.front(), columns.front().width);
  for (std::size_t i = 1; i < cells.size(); ++i)
    text += fmt::format(" {:>{}}", cells[i], columns[i].width);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

inline std::string heading(const std::vector<Column>& columns) {
  std::vector<std::string> over, head;
  for (const Column& column : columns) {
    over.emplace_back(column.over);
    head.emplace_back(column.head);
  }
  return row(columns, over) + row(columns, head);
}

}  // namespace shakedown
