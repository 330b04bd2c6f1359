#include "resnet/precision.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"

namespace shakedown {

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::tf32: return "tf32";
    case Precision::fp16: return "fp16";
    case Precision::bf16: return "bf16";
  }
  throw InternalError("unknown precision");
}

Precision parse_precision(const std::string& name, BackendKind backend) {
  Precision precision = Precision::tf32;  // of auto
  if (name != "auto") {
    const auto all = {Precision::fp32, Precision::tf32, Precision::fp16, Precision::bf16};
    const auto* const found =
        std::find_if(all.begin(), all.end(), [&](Precision p) { return name == name_of(p); });
    if (found == all.end())
      throw UsageError("--precision " + name + ": must be one of fp32, tf32, fp16, bf16");
    precision = *found;
  }
  return backend == BackendKind::cpu ? Precision::fp32 : precision;
}

std::string precision_remark(const std::string& option, const std::vector<std::string>& requested,
                             BackendKind backend) {
  const auto is_computed = [&](const std::string& name) {
    return name == "auto" || name == name_of(parse_precision(name, backend));
  };
  if (std::all_of(requested.begin(), requested.end(), is_computed)) return "";
  return fmt::format("{} {}: computed in fp32, as the cpu backend does", option,
                     fmt::join(requested, ","));
}

DataType compute_type(Precision precision) {
  switch (precision) {
    case Precision::fp16: return DataType::float16;
    case Precision::bf16: return DataType::bfloat16;
    default: return DataType::float32;
  }
}

}  // namespace shakedown
