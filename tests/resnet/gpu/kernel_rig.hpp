// Tensors on a GPU for tests of single kernels.
#pragma once

#include <cmath>
#include <map>

#include "common/gpu/native.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/resnet/unit_rig.hpp"

namespace shakedown::test {

/// Host values as the type has them, and their copy on the device.
struct Tensor {
  Values values;
  Buffer memory;
};

struct KernelRig : DeviceRig {
  KernelRig() : DeviceRig(BackendKind::gpu) {}

  Tensor rounded(DataType type, const std::vector<float>& values) {
    const Buffer wide = to_device(*device, *stream, values);
    Tensor tensor{{}, Buffer(*device, values.size() * size_of(type))};
    device->kernels().convert(wide.view(DataType::float32), tensor.memory.view(type), *stream);
    tensor.values = get(tensor.memory.view(type));
    return tensor;
  }
  Values get(View view) {
    const Buffer wide(*device, view.count * sizeof(float));
    device->kernels().convert(view, wide.view(DataType::float32), *stream);
    return widen(download<float>(*device, *stream, wide.data(), view.count));
  }
  /// Poisoned: a float not written is NaN.
  Buffer floats(std::size_t count) {
    Buffer made(*device, count * sizeof(float));
    upload<std::uint8_t>(*device, *stream, made.data(),
                         std::vector<std::uint8_t>(made.bytes(), 0xFF));
    return made;
  }
  cudaStream_t native() const { return gpu::native(*stream); }
  gpu::Launch on(const ActivationShape& shape, DataType type) const {
    return {shape, type, native()};
  }
};

inline float* floats_of(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

/// A bound of relative errors: about four roundings of a 16-bit type.
inline double rounding(DataType type) { return type == DataType::float16 ? 1e-3 : 8e-3; }

inline std::vector<float> narrow(const Values& values) { return {values.begin(), values.end()}; }

/// A norm's vectors in one buffer, of which some are given.
inline Buffer vectors_with(KernelRig& rig, std::size_t channels,
                           const std::map<int, Values>& given) {
  std::vector<float> all(gpu::NormVectors::kCount * channels, std::nanf(""));
  for (const auto& [which, values] : given)
    for (std::size_t i = 0; i < channels; ++i)
      all[static_cast<std::size_t>(which) * channels + i] = static_cast<float>(values[i]);
  return to_device(*rig.device, *rig.stream, all);
}

}  // namespace shakedown::test
