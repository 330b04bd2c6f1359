// The precision a network computes in.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/types.hpp"

namespace shakedown {

/// fp32: float32 throughout. tf32: float32 memory, tensor cores on inputs rounded to 10 bits.
/// fp16, bf16: activations, weights and gradients in 16 bits, sums and master weights in float32.
enum class Precision { fp32, tf32, fp16, bf16 };

const char* name_of(Precision precision);
/// "auto" is tf32 on gpu. The cpu backend computes every precision in fp32.
Precision parse_precision(const std::string& name, BackendKind backend);
/// "--precision fp16: computed in fp32, as the cpu backend does"; "" where the requested precisions
/// are those that are computed.
std::string precision_remark(const std::string& option, const std::vector<std::string>& requested,
                             BackendKind backend);
/// The type of activations, compute weights and gradients.
DataType compute_type(Precision precision);
/// Only float16's range needs the loss scaled.
inline bool scales_loss(Precision precision) { return precision == Precision::fp16; }

}  // namespace shakedown
