// The record: JSON lines, one self-contained flat object per line, flushed as written, so that a
// crashed run leaves what it measured. Every line has the run_id of its run, so that several jobs
// may append to one file. The schema is results/schema.json.
#pragma once

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shakedown {

using Json = nlohmann::ordered_json;  // <nlohmann/json.hpp>: who makes or reads one includes it

class Record {
 public:
  /// Appends to `path`, whose folder is made; an empty path records nothing. Throws UsageError when
  /// it cannot be opened, or holds something other than a record. Only one rank of a job records.
  explicit Record(const std::string& path);
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  /// Adds one line: {"kind": kind, "run_id": id, ...fields}, after a line that was cut on a line of
  /// its own. Non-finite numbers become null. Throws InconclusiveError when the line cannot be
  /// written (disk full); the lines before it are kept whole. "end" is the last: of two threads,
  /// one may write it while the other measures.
  void write(const std::string& kind, const Json& fields);

  const std::string& path() const { return path_; }
  /// The start, the host and random digits: no other Record has the same.
  const std::string& run_id() const { return run_id_; }

 private:
  std::string path_;
  std::string run_id_;
  int file_ = -1;
  std::mutex mutex_;
  bool ended_ = false;
};

/// Now, as 2026-11-21T06:23:00Z.
std::string utc_now();

/// As text. Bytes that are not UTF-8, which names of hosts, files and devices may have, become
/// U+FFFD.
std::string json_text(const Json& json, int indent = -1);

/// `fields` followed by `more`.
Json merged(Json fields, const Json& more);

}  // namespace shakedown
