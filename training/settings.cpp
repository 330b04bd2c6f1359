#include "training/settings.hpp"

#include <utility>

namespace shakedown {
namespace {

/// Whether it was another.
template <class T>
bool set(T& target, const T& value) {
  return std::exchange(target, value) != value;
}

/// Both keep float32 in memory; on the cpu backend there is one of them only.
bool set_precision(TrainOptions& options, BackendKind backend, const char* from, const char* to) {
  return backend == BackendKind::gpu && std::exchange(options.model.precision, to) == from;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> table{
      {"autotune-off",
       [](TrainOptions& o, BackendKind b) {
         return b == BackendKind::gpu && set(o.model.autotune, false);
       }},
      {"tf32", [](TrainOptions& o, BackendKind b) { return set_precision(o, b, "fp32", "tf32"); }},
      {"fp32", [](TrainOptions& o, BackendKind b) { return set_precision(o, b, "tf32", "fp32"); }},
      {"bucket-copy",
       [](TrainOptions& o, BackendKind) { return set(o.strategy.bucket_copy, true); }},
      {"broadcast-buffers",
       [](TrainOptions& o, BackendKind) { return set(o.strategy.broadcast_buffers, true); }},
      {"no-overlap", [](TrainOptions& o, BackendKind) { return set(o.strategy.no_overlap, true); }},
      {"small-last",
       [](TrainOptions& o, BackendKind) {
         return set<std::string>(o.strategy.bucket_order, "small-last");
       }},
      {"normal-priority",
       [](TrainOptions& o, BackendKind b) {
         return b == BackendKind::gpu && set<std::string>(o.strategy.comm_priority, "normal");
       }},
      {"no-graph",
       [](TrainOptions& o, BackendKind b) {
         return b == BackendKind::gpu && set<std::string>(o.graph, "off");
       }},
  };
  return table;
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Setting& setting : settings()) names.emplace_back(setting.name);
  return names;
}

}  // namespace shakedown
