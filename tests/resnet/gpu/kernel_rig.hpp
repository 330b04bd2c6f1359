// Tensors on a GPU for tests of single kernels.
#pragma once

#include <cmath>

#include "common/gpu/native.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/resnet/unit_rig.hpp"

namespace shakedown::test {

/// Host values as the type has them, and their copy on the device.
struct Tensor {
  Values values;
  Buffer memory;

  void* data() const { return memory.data(); }
};

inline float* floats_of(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

inline std::vector<float> narrow(const Values& values) { return {values.begin(), values.end()}; }

/// A bound of relative errors: about four roundings of a 16-bit type.
inline double rounding(DataType type) { return type == DataType::float16 ? 1e-3 : 8e-3; }

inline std::size_t rows_of(const ActivationShape& shape) {
  return shape.count() / static_cast<std::size_t>(shape.c);
}

/// random_values after a ReLU.
inline std::vector<float> positive_values(std::size_t count) {
  auto values = random_values(count, 1, -1, 1.5);
  for (float& v : values) v = std::max(v, 0.0F);
  return values;
}

struct KernelRig : DeviceRig {
  KernelRig() : DeviceRig(BackendKind::gpu) {}

  Tensor rounded(DataType type, const std::vector<float>& values) {
    const Buffer wide = of(values);
    Tensor tensor{{}, Buffer(*device, values.size() * size_of(type))};
    device->kernels().convert(wide.view(DataType::float32), tensor.memory.view(type), *stream);
    tensor.values = get(tensor.memory.view(type));
    return tensor;
  }
  Values get(View view) {
    const Buffer wide(*device, view.count * sizeof(float));
    device->kernels().convert(view, wide.view(DataType::float32), *stream);
    return read(floats_of(wide), view.count);
  }
  Values read(const float* from, std::size_t count) {
    return widen(download<float>(*device, *stream, from, count));
  }
  /// Poisoned: a float not written is NaN.
  Buffer floats(std::size_t count) {
    Buffer made(*device, count * sizeof(float));
    upload<std::uint8_t>(*device, *stream, made.data(),
                         std::vector<std::uint8_t>(made.bytes(), 0xFF));
    return made;
  }
  /// The sums of `count` parts of `size` floats.
  Values totals(const Buffer& parts, int count, std::size_t size) {
    const Buffer to = floats(size);
    gpu::sum_partials(floats_of(parts), count, static_cast<int>(size), floats_of(to), native());
    return read(floats_of(to), size);
  }
  cudaStream_t native() const { return gpu::native(*stream); }
  gpu::Launch on(const ActivationShape& shape, DataType type) const {
    return {shape, type, native()};
  }
};

}  // namespace shakedown::test
