#include "collectives/perf/type_names.hpp"

#include <fmt/format.h>

#include <vector>

#include "common/error.hpp"

namespace shakedown::collectives {
namespace {

/// The value that `is_named`, else a UsageError that lists all names.
template <class Value, class IsNamed>
Value find(const std::string& option, const std::string& name, const std::vector<Value>& values,
           IsNamed&& is_named) {
  std::vector<std::string> known;
  for (Value value : values) {
    if (is_named(value)) return value;
    known.emplace_back(name_of(value));
  }
  throw UsageError(
      fmt::format("{} {}: must be one of {}, all", option, name, fmt::join(known, ", ")));
}

}  // namespace

const char* nccl_tests_name_of(DataType type) {
  switch (type) {
    case DataType::float64: return "double";
    case DataType::float32: return "float";
    case DataType::float16: return "half";
    case DataType::float8_e4m3: return "f8e4m3";
    case DataType::float8_e5m2: return "f8e5m2";
    default: return name_of(type);
  }
}

DataType parse_data_type(const std::string& option, const std::string& name) {
  return find(option, name, all_data_types(), [&](DataType type) {
    return name == name_of(type) || name == nccl_tests_name_of(type);
  });
}

Reduction parse_reduction(const std::string& option, const std::string& name) {
  return find(option, name, all_reductions(),
              [&](Reduction reduction) { return name == name_of(reduction); });
}

int nccl_version_code(const std::string& version) {
  int major = 0;
  int minor = 0;
  int patch = 0;
  std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &patch);
  return major * 10000 + minor * 100 + patch;
}

std::string nccl_tests_device(const std::string& pci_id) {
  return pci_id.empty() ? "cpu" : pci_id.substr(0, pci_id.find('.'));
}

}  // namespace shakedown::collectives
