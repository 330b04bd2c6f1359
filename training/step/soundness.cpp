#include "training/step/soundness.hpp"

#include <algorithm>
#include <cmath>

namespace shakedown::training {

std::string unsound_tensor(const ParameterTable& table, std::span<const float> master,
                           std::span<const float> statistics) {
  const auto finite = [](std::span<const float> values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  };
  for (const Parameter& p : table.parameters())
    if (!finite(master.subspan(p.offset, p.stored))) return p.name;
  if (statistics.empty()) return "";
  for (const RunningStatistics& s : table.statistics()) {
    const auto variance = statistics.subspan(s.offset + s.channels, s.channels);
    if (!finite(statistics.subspan(s.offset, s.channels))) return s.name + ".running_mean";
    if (!finite(variance) || *std::min_element(variance.begin(), variance.end()) < 0)
      return s.name + ".running_var";
  }
  return "";
}

}  // namespace shakedown::training
