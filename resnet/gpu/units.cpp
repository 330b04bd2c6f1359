#include <fmt/format.h>

#include <algorithm>

#include "common/device.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"
#include "resnet/gpu/handles.hpp"

namespace shakedown::gpu {
namespace {

class GpuUnits final : public UnitFactory {
 public:
  explicit GpuUnits(const UnitContext& context) : context_(context) {}

  std::unique_ptr<NetworkUnit> stem(const StemSpec& spec) override {
    return make_stem(context_, spec);
  }
  std::unique_ptr<NetworkUnit> conv_norm(const ConvNormSpec& spec) override {
    return make_conv_norm(context_, spec);
  }
  std::unique_ptr<NetworkUnit> conv_norm_add(const ConvNormAddSpec& spec) override {
    return make_conv_norm_add(context_, spec);
  }
  std::unique_ptr<NetworkUnit> head(const HeadSpec& spec) override {
    return make_head(context_, spec);
  }

  bool compacts_gradients() const override { return true; }
  bool rebuilds() const override { return true; }
  void set_repeatable(bool repeatable) override { context_.repeatable = repeatable; }
  Fused fused() const override { return context_.fused; }
  void bound() override { context_.tuner.save(); }
  Roofs measure_roofs() override {
    return gpu::measure_roofs(context_.device, context_.stream, context_.blas, context_.precision);
  }

  int lanes(const ActivationShape& shape) const override { return shape.c; }

  void normalise_images(const std::uint8_t* images, const ActivationShape& shape,
                        const Slot& x) override {
    gpu::normalise_images(images, x.data(), context_.on(shape));
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
    const auto size = [&](std::size_t i) { return static_cast<std::size_t>(p.shape[i]); };
    const std::size_t filters = size(0), real = size(1), taps = size(2) * size(3);
    const std::size_t padded = p.stored / (filters * taps);
    for (std::size_t k = 0; k < filters; ++k)
      for (std::size_t c = 0; c < real; ++c)
        for (std::size_t t = 0; t < taps; ++t)
          move((k * real + c) * taps + t, (k * taps + t) * padded + c);
  }

  GpuContext context_;
};

}  // namespace

std::unique_ptr<UnitFactory> make_units(const UnitContext& context) {
  return std::make_unique<GpuUnits>(context);
}

namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 30;
constexpr int kMatrixSize = 8192;
constexpr int kWarmup = 20;  // clocks rise, and power finds its limit
constexpr int kRuns = 50;

/// Median time of `kRuns` runs back to back.
template <class Body>
double median_ms(Device& device, Stream& stream, Body&& body) {
  for (int i = 0; i < kWarmup; ++i) body();
  Laps laps(device, kRuns);
  laps.mark(stream);
  for (int i = 0; i < kRuns; ++i) {
    body();
    laps.mark(stream);
  }
  return median_of(laps.milliseconds());
}

void check_fits(const Device& device, std::size_t bytes) {
  const std::size_t free = device.memory().free_bytes;
  if (bytes > free)
    throw UsageError(fmt::format(
        "--layers, --kernels: measuring the roofs needs {} of GPU memory, {} are free; use a "
        "smaller "
        "--batch-size",
        readable_bytes(static_cast<double>(bytes)), readable_bytes(static_cast<double>(free))));
}

/// Random numbers: zeros would use less power than data do.
Buffer random(Device& device, Stream& stream, std::size_t count, DataType type) {
  Buffer made(device, count * size_of(type));
  randomise(made.data(), count, type, native(stream));
  return made;
}

}  // namespace

Roofs measure_roofs(Device& device, Stream& stream, const BlasHandle& blas, Precision precision) {
  Roofs roofs{};
  {
    check_fits(device, 2 * kCopyBytes);
    const Buffer from = random(device, stream, kCopyBytes / sizeof(float), DataType::float32);
    const Buffer to(device, kCopyBytes);
    const double ms =
        median_ms(device, stream, [&] { device.copy(to.data(), from.data(), kCopyBytes, stream); });
    roofs.copy_bytes = kCopyBytes;
    roofs.copy_gbs = 2.0 * static_cast<double>(kCopyBytes) / ms / 1e6;
  }
  constexpr auto n = static_cast<std::size_t>(kMatrixSize);
  const DataType element = compute_type(precision);
  check_fits(device, 3 * n * n * size_of(element));
  const Buffer a = random(device, stream, n * n, element);
  const Buffer b = random(device, stream, n * n, element);
  const Buffer c(device, n * n * size_of(element));
  const float one = 1;
  const float zero = 0;
  const cudaDataType_t type = blas_type(element);
  const double ms = median_ms(device, stream, [&] {
    CHECK_CUBLAS(cublasGemmEx(blas.get, CUBLAS_OP_N, CUBLAS_OP_N, kMatrixSize, kMatrixSize,
                              kMatrixSize, &one, a.data(), type, kMatrixSize, b.data(), type,
                              kMatrixSize, &zero, c.data(), type, kMatrixSize,
                              blas_compute(precision), CUBLAS_GEMM_DEFAULT));
  });
  roofs.matrix_size = kMatrixSize;
  roofs.matrix_tflops = 2.0 * kMatrixSize * kMatrixSize * kMatrixSize / ms / 1e9;
  return roofs;
}

}  // namespace shakedown::gpu
