// The record: JSON lines, one self-contained flat object a line, flushed as written, so that a
// crashed run leaves what it measured. The schema is results/schema.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace shakedown {

using Json = nlohmann::ordered_json;

class Record {
 public:
  /// Appends to `path`, on a new line where its last one was cut; an empty path records nothing.
  /// Throws UsageError when it cannot be opened. Only one rank of a job records.
  explicit Record(const std::string& path);
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  /// Adds one line: {"kind": kind, ...fields}. Non-finite numbers become null. Throws
  /// InconclusiveError when the line cannot be written (disk full).
  void write(const std::string& kind, const Json& fields);

  bool active() const { return file_ >= 0; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
  bool cut_ = false;  // the file does not end with a newline
};

/// `fields` with `more` behind them.
inline Json merged(Json fields, const Json& more) {
  fields.update(more);
  return fields;
}

}  // namespace shakedown
