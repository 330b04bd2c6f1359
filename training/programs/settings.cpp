#include "training/programs/settings.hpp"

#include <utility>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

/// Whether it was another.
template <class T>
bool set(T& target, const T& value) {
  return std::exchange(target, value) != value;
}

}  // namespace

const std::vector<Setting>& settings() {
  using Options = StepOptions;
  static const std::vector<Setting> table{
      {"autotune-off", true, [](Options& o) { return set(o.model.autotune, false); }},
      // both keep float32 in memory; other precisions are no neighbours of theirs
      {"tf32", true, [](Options& o) { return std::exchange(o.model.precision, "tf32") == "fp32"; }},
      {"fp32", true, [](Options& o) { return std::exchange(o.model.precision, "fp32") == "tf32"; }},
      {"bucket-copy", false, [](Options& o) { return set(o.strategy.bucket_copy, true); }},
      {"broadcast-buffers", false,
       [](Options& o) { return set(o.strategy.broadcast_buffers, true); }},
      {"no-overlap", false, [](Options& o) { return set(o.strategy.no_overlap, true); }},
      {"small-last", false,
       [](Options& o) { return set<std::string>(o.strategy.bucket_order, "small-last"); }},
      {"normal-priority", true,
       [](Options& o) { return set<std::string>(o.strategy.comm_priority, "normal"); }},
      {"no-graph", true, [](Options& o) { return set<std::string>(o.graph, "off"); }},
  };
  return table;
}

const Setting& find_setting(const std::string& name) {
  for (const Setting& setting : settings())
    if (name == setting.name) return setting;
  throw InternalError("training/programs/settings.cpp has no line for " + name);
}

std::string Setting::apply(StepOptions& options, BackendKind backend) const {
  if (only_gpu && backend != BackendKind::gpu) return "only on the gpu backend";
  if (change(options)) return "";
  return "no change from plain ddp with these options";
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Setting& setting : settings()) names.emplace_back(setting.name);
  return names;
}

}  // namespace shakedown::training
