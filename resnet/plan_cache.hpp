// Which plans were found fastest, on disk: a later run of the same build on the same kind of GPU
// need not time them again. What it says is a hint: a plan that cuDNN does not offer any more is
// timed anew, and a file that is damaged is as none. Other builds and kinds of GPU keep theirs in
// it.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace shakedown {

class PlanCache {
 public:
  /// `file` empty: keeps nothing beyond this run. `machine`: GPU and library versions; the file has
  /// a place for each, which the last `build` holds.
  PlanCache(std::string file, std::string machine, std::string build);

  /// The plan's name.
  std::optional<std::string> find(const std::string& convolution) const;
  void keep(const std::string& convolution, const std::string& plan);
  /// Writes what is new, beside what others have written since, whole or not at all. That it could
  /// not be written is no error: false.
  bool save();

 private:
  std::string file_;
  std::string machine_;
  std::string build_;
  std::map<std::string, std::string> plans_;
  bool new_ = false;
};

}  // namespace shakedown
