// --history: what each epoch gave, in files that plotting scripts read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/record.hpp"
#include "training/programs/epochs.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct HistoryOptions {
  std::string folder;  // empty: none
};
void declare_options(OptionSet& options, HistoryOptions& values);

/// training_history.json, a list per quantity, and training_history.csv, a line per epoch.
class History {
 public:
  /// Continues the history that the folder has; an empty folder keeps none. Throws UsageError where
  /// the folder cannot be written, or has another training_history.json.
  explicit History(std::string folder);

  /// The training goes on with this epoch: drops what the files have of it and of later ones, from
  /// a run that is repeated, or resumed from an older checkpoint.
  void continue_at(int epoch);
  /// An epoch that has just ended.
  void add(const EpochResult& result);

  /// Draws curves.png by results/report, and prints how where that cannot be started.
  void draw_curves() const;

 private:
  /// Both files whole, so that a killed run leaves them as they were after an epoch.
  void write() const;

  std::string folder_;
  Json epochs_ = Json::array();  // an object per epoch
};

}  // namespace shakedown::training
