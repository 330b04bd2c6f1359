#include "common/csv.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/error.hpp"

namespace shakedown {
namespace {

std::string text_of(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return json_text(value);
  std::vector<std::string> items;
  for (const Json& item : value) items.push_back(text_of(item));
  return fmt::format("{}", fmt::join(items, " "));
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string cell = "\"";
  for (char c : text) cell += c == '"' ? "\"\"" : std::string(1, c);
  return cell + "\"";
}

}  // namespace

CsvFile::CsvFile(Output output, std::vector<std::string> columns)
    : output_(std::move(output)), columns_(std::move(columns)) {
  if (output_.path.empty()) return;
  check_writable(output_);
  const auto how = is_written_itself(output_.path) ? std::ios::app : std::ios::trunc;
  file_.open(output_.path, std::ios::binary | how);
  write(columns_);
}

void CsvFile::add(const Json& record) {
  if (output_.path.empty()) return;
  std::vector<std::string> cells;
  for (const std::string& column : columns_) cells.push_back(text_of(record.value(column, Json())));
  write(cells);
}

void CsvFile::write(const std::vector<std::string>& cells) {
  std::vector<std::string> texts;
  for (const std::string& cell : cells) texts.push_back(quoted(cell));
  file_ << fmt::format("{}\n", fmt::join(texts, ",")) << std::flush;
  if (!file_)
    throw InconclusiveError(fmt::format("{} {}: cannot be written: {}", output_.option,
                                        output_.path, std::strerror(errno)));
}

}  // namespace shakedown
