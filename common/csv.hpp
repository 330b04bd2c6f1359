// A table as comma-separated values (RFC 4180), for spreadsheets and pandas: chosen keys of
// records, in stable columns.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "common/output_file.hpp"
#include "common/record.hpp"

namespace shakedown {

class CsvFile {
 public:
  /// Replaces the file by a line with the names of the columns; an empty path writes nothing.
  /// Throws UsageError where the file cannot be written.
  CsvFile(Output output, std::vector<std::string> columns);

  /// Adds one line: the record's values under the columns' keys, empty where a key is absent, null
  /// or not finite; items of a list are separated by blanks. It is flushed, so that a crash leaves
  /// what was measured. Throws InconclusiveError where it cannot be written (disk full).
  void add(const Json& record);

 private:
  void write(const std::vector<std::string>& cells);

  Output output_;
  std::vector<std::string> columns_;
  std::ofstream file_;
};

}  // namespace shakedown
