#include "resnet/precision.hpp"

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

Precision parse_precision(const std::string& name, BackendKind backend, const std::string& no_gpu) {
  if (name == "auto") return backend == BackendKind::gpu ? Precision::tf32 : Precision::fp32;
  for (Precision p : {Precision::fp32, Precision::tf32, Precision::fp16, Precision::bf16}) {
    if (name != name_of(p)) continue;
    if (backend == BackendKind::cpu && p != Precision::fp32)
      throw UsageError("--precision " + name + ": the cpu backend computes in fp32 only" +
                       (no_gpu.empty() ? "" : "; it was chosen as " + no_gpu));
    return p;
  }
  throw UsageError("--precision " + name + ": must be one of fp32, tf32, fp16, bf16");
}

DataType compute_type(Precision precision) {
  switch (precision) {
    case Precision::fp16: return DataType::float16;
    case Precision::bf16: return DataType::bfloat16;
    default: return DataType::float32;
  }
}

}  // namespace shakedown
