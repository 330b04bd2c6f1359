#include "resnet/gpu/units.hpp"

#include <algorithm>
#include <cstring>

#include "common/error.hpp"
#include "common/half.hpp"

namespace shakedown::gpu {
namespace {

/// Calls move(index in N C H W, index in NHWC) for every element.
template <class Move>
void for_each_element(const ActivationShape& s, Move&& move) {
  const auto c_count = static_cast<std::size_t>(s.c);
  const std::size_t pixels = static_cast<std::size_t>(s.h) * static_cast<std::size_t>(s.w);
  for (std::size_t n = 0; n < static_cast<std::size_t>(s.n); ++n)
    for (std::size_t c = 0; c < c_count; ++c)
      for (std::size_t p = 0; p < pixels; ++p)
        move((n * c_count + c) * pixels + p, (n * pixels + p) * c_count + c);
}

void store(DataType type, std::byte* to, std::size_t i, float value) {
  if (type == DataType::float32) {
    std::memcpy(to + i * 4, &value, 4);
    return;
  }
  const std::uint16_t bits =
      type == DataType::float16 ? float_to_float16(value) : float_to_bfloat16(value);
  std::memcpy(to + i * 2, &bits, 2);
}

float fetch(DataType type, const std::byte* from, std::size_t i) {
  if (type == DataType::float32) {
    float value = 0;
    std::memcpy(&value, from + i * 4, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from + i * 2, 2);
  return type == DataType::float16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}

/// A convolution's weights as an activation: K filters of C x R x S; C as stored, maybe padded.
ActivationShape filter_shape(const Parameter& p) {
  const auto size = [&](int i) { return static_cast<int>(p.shape[static_cast<std::size_t>(i)]); };
  return {size(0), static_cast<int>(p.stored) / (size(0) * size(2) * size(3)), size(2), size(3)};
}

class GpuUnits final : public UnitFactory {
 public:
  explicit GpuUnits(const UnitContext& context) : shared_(context) {}

  std::unique_ptr<Unit> stem(const StemSpec& spec) override { return make_stem(shared_, spec); }
  std::unique_ptr<Unit> conv_norm(const ConvNormSpec& spec) override {
    return make_conv_norm(shared_, spec);
  }
  std::unique_ptr<Unit> conv_norm_add(const ConvNormAddSpec& spec) override {
    return make_conv_norm_add(shared_, spec);
  }
  std::unique_ptr<Unit> head(const HeadSpec& spec) override { return make_head(shared_, spec); }

  bool rebuilds() const override { return true; }
  void set_repeatable(bool repeatable) override { shared_.repeatable = repeatable; }
  Fused fused() const override { return shared_.fused; }
  void bound() override { shared_.cache.save(); }
  Roofs measure_roofs() override { return gpu::measure_roofs(shared_); }

  std::size_t activation_bytes(const ActivationShape& shape) const override {
    return shape.count() * size_of(shared_.type);
  }

  void normalise_images(const std::uint8_t* images, const ActivationShape& shape,
                        const Slot& x) override {
    gpu::normalise_images(images, x.data(), shape, shared_.type, shared_.stream);
  }

  void pack_activation(std::span<const float> nchw, const ActivationShape& shape,
                       std::span<std::byte> stored) const override {
    ENSURE(stored.size() == activation_bytes(shape), "bytes of a packed activation");
    for_each_element(shape, [&](std::size_t plain, std::size_t packed) {
      store(shared_.type, stored.data(), packed, nchw[plain]);
    });
  }
  void unpack_activation(std::span<const std::byte> stored, const ActivationShape& shape,
                         std::span<float> nchw) const override {
    ENSURE(stored.size() == activation_bytes(shape), "bytes of a packed activation");
    for_each_element(shape, [&](std::size_t plain, std::size_t packed) {
      nchw[plain] = fetch(shared_.type, stored.data(), packed);
    });
  }
  void pack_parameter(const Parameter& p, std::span<const float> canonical,
                      std::span<float> stored) const override {
    std::fill(stored.begin(), stored.end(), 0.0F);
    for_each_weight(
        p, [&](std::size_t plain, std::size_t packed) { stored[packed] = canonical[plain]; });
  }
  void unpack_parameter(const Parameter& p, std::span<const float> stored,
                        std::span<float> canonical) const override {
    for_each_weight(
        p, [&](std::size_t plain, std::size_t packed) { canonical[plain] = stored[packed]; });
  }

 private:
  /// move(index in torchvision's layout, index in the flat buffer): K C R S to K R S C.
  template <class Move>
  static void for_each_weight(const Parameter& p, Move&& move) {
    if (p.kind != ParameterKind::conv_weight) {
      for (std::size_t i = 0; i < p.count; ++i) move(i, i);
      return;
    }
    const ActivationShape s = filter_shape(p);
    const auto real = static_cast<std::size_t>(p.shape[1]);
    const auto padded = static_cast<std::size_t>(s.c);
    const std::size_t taps = static_cast<std::size_t>(s.h) * static_cast<std::size_t>(s.w);
    for (std::size_t k = 0; k < static_cast<std::size_t>(s.n); ++k)
      for (std::size_t c = 0; c < real; ++c)
        for (std::size_t t = 0; t < taps; ++t)
          move((k * real + c) * taps + t, (k * taps + t) * padded + c);
  }

  Shared shared_;
};

}  // namespace

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_library_error("cuBLAS", expression, file, line, cublasGetStatusString(status));
}

cudaDataType_t blas_type(DataType type) {
  switch (type) {
    case DataType::float16: return CUDA_R_16F;
    case DataType::bfloat16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t blas_compute(Precision precision) {
  return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

DnnHandle::DnnHandle(cudaStream_t stream) {
  CHECK_CUDNN(cudnnCreate(&get));
  CHECK_CUDNN(cudnnSetStream(get, stream));
}

// As much as cuBLAS would take on Hopper; taken here, as it may not while a step is captured.
constexpr std::size_t kBlasWorkspace = std::size_t{32} << 20;

BlasHandle::BlasHandle(Device& device, cudaStream_t stream) : workspace_(device, kBlasWorkspace) {
  CHECK_CUBLAS(cublasCreate(&get));
  CHECK_CUBLAS(cublasSetStream(get, stream));  // which would forget the workspace
  CHECK_CUBLAS(cublasSetWorkspace(get, workspace_.data(), workspace_.bytes()));
}

std::unique_ptr<UnitFactory> make_units(const UnitContext& context) {
  return std::make_unique<GpuUnits>(context);
}

}  // namespace shakedown::gpu
