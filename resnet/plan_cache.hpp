// Which plans were found fastest, on disk: a later run of the same build on the same kind of GPU
// need not time them again. What it says is a hint: a plan that cuDNN does not offer any more is
// timed anew, and a file that is damaged, or of another build, is as none.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace shakedown {

class PlanCache {
 public:
  /// `file` empty: keeps nothing. `machine`: GPU, library versions and build, all of which must be
  /// the same.
  PlanCache(std::string file, std::string machine);

  /// The plan's name.
  std::optional<std::string> find(const std::string& convolution) const;
  void keep(const std::string& convolution, const std::string& plan);
  /// Writes what is new, beside what others have written since, whole or not at all. That it could
  /// not be written is no error: false.
  bool save();

 private:
  std::map<std::string, std::string> read() const;

  std::string file_;
  std::string machine_;
  std::map<std::string, std::string> plans_;
  bool new_ = false;
};

}  // namespace shakedown
