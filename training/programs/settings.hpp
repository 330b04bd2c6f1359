// bin/compare --settings: one-switch variants of plain ddp.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"
#include "training/programs/step_options.hpp"

namespace shakedown::training {

struct Setting {
  const char* name;
  bool only_gpu;  // the cpu backend has no such switch
  /// Throws the switch in options of plain ddp; false where it stands so already, or has no such
  /// position there: then there is nothing to compare.
  bool (*change)(StepOptions& options);
  /// Changes the options. Why there is nothing to compare: "only on the gpu backend"; else "".
  std::string apply(StepOptions& options, BackendKind backend) const;
};

/// The one list of settings.
const std::vector<Setting>& settings();
/// Throws InternalError where there is none.
const Setting& find_setting(const std::string& name);
std::vector<std::string> setting_names();

}  // namespace shakedown::training
