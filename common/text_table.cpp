#include "common/text_table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

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

std::string wrapped(const std::string& text, int indent, int width_of_line) {
  if (width_of_line == 0) return text;
  const auto breaks = [&](std::size_t i) { return text[i] == ' ' && text[i + 1] != '%'; };
  std::string lines;
  std::size_t begin = 0;
  auto width = static_cast<std::size_t>(width_of_line);  // of this line without its indentation
  while (text.size() - begin > width) {
    std::size_t end = begin + width;
    while (end > begin && !breaks(end)) --end;
    if (end == begin) end = text.find(' ', begin);  // a word too long
    if (end == std::string::npos) break;
    lines +=
        text.substr(begin, end - begin) + "\n" + std::string(static_cast<std::size_t>(indent), ' ');
    begin = end + 1;
    width = static_cast<std::size_t>(width_of_line - indent);
  }
  return lines + text.substr(begin);
}

std::string labelled(const std::string& label, const std::string& text) {
  return wrapped(fmt::format("{:<9} {}", label, text), 10) + "\n";
}

}  // namespace shakedown
