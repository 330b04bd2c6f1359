// What bin/compare --settings holds against plain ddp: configurations that differ from it in one
// switch that people argue about.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"
#include "training/train_options.hpp"

namespace shakedown {

struct Setting {
  const char* name;
  /// Throws the switch in options of plain ddp; false where it stands so already, or has no such
  /// position there: then there is nothing to compare.
  bool (*change)(TrainOptions& options, BackendKind backend);
};

/// The one list of settings.
const std::vector<Setting>& settings();
std::vector<std::string> setting_names();

}  // namespace shakedown
