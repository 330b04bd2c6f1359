// The fastest plans, kept in a file, so that a later run of the same build on the same GPU model
// does not time them again. An entry is a hint: if cuDNN no longer offers the plan, it is timed
// again; a corrupt file is ignored. The file has sections for other builds and GPU models too.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace shakedown {

class PlanCache {
 public:
  /// `file` empty: nothing outlives the run. `machine`: GPU and library versions; the file has a
  /// section for each, valid for the `build` that wrote it last.
  PlanCache(std::string file, std::string machine, std::string build);

  /// The plan's name.
  std::optional<std::string> find(const std::string& convolution) const;
  void keep(const std::string& convolution, const std::string& plan);
  /// Merges new entries into the file, atomically. Returns false if it cannot be written, which is
  /// no error.
  bool save();

 private:
  std::string file_;
  std::string machine_;
  std::string build_;
  std::map<std::string, std::string> plans_;
  bool new_ = false;
};

}  // namespace shakedown
