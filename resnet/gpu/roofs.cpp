#include <fmt/format.h>

#include "common/error.hpp"
#include "common/laps.hpp"
#include "common/statistics.hpp"
#include "resnet/gpu/context.hpp"

namespace shakedown::gpu {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 30;
constexpr int kMatrixSize = 8192;
constexpr int kWarmup = 20;  // clocks rise, and power finds its limit
constexpr int kRuns = 50;

/// Median time of `kRuns` runs back to back.
template <class Body>
double median_ms(const UnitContext& context, Body&& body) {
  for (int i = 0; i < kWarmup; ++i) body();
  Laps laps(context.device, kRuns);
  laps.mark(context.stream);
  for (int i = 0; i < kRuns; ++i) {
    body();
    laps.mark(context.stream);
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

void measure_copy(GpuContext& context, Roofs& roofs) {
  Device& device = context.device;
  check_fits(device, 2 * kCopyBytes);
  const Buffer from(device, kCopyBytes);
  const Buffer to(device, kCopyBytes);
  // zeros would use less power than data do
  randomise(from.data(), kCopyBytes / sizeof(float), DataType::float32, context.cuda_stream);
  const double ms =
      median_ms(context, [&] { device.copy(to.data(), from.data(), kCopyBytes, context.stream); });
  roofs.copy_bytes = kCopyBytes;
  roofs.copy_gbs = 2.0 * static_cast<double>(kCopyBytes) / ms / 1e6;
}

void measure_matrix(GpuContext& context, Roofs& roofs) {
  Device& device = context.device;
  constexpr auto n = static_cast<std::size_t>(kMatrixSize);
  const std::size_t bytes = n * n * size_of(context.type);
  check_fits(device, 3 * bytes);
  const Buffer a(device, bytes);
  const Buffer b(device, bytes);
  const Buffer c(device, bytes);
  for (const Buffer* matrix : {&a, &b})
    randomise(matrix->data(), n * n, context.type, context.cuda_stream);
  const float one = 1;
  const float zero = 0;
  const cudaDataType_t type = blas_type(context.type);
  const double ms = median_ms(context, [&] {
    CHECK_CUBLAS(cublasGemmEx(context.blas.get, CUBLAS_OP_N, CUBLAS_OP_N, kMatrixSize, kMatrixSize,
                              kMatrixSize, &one, a.data(), type, kMatrixSize, b.data(), type,
                              kMatrixSize, &zero, c.data(), type, kMatrixSize,
                              blas_compute(context.precision), CUBLAS_GEMM_DEFAULT));
  });
  roofs.matrix_size = kMatrixSize;
  roofs.matrix_tflops = 2.0 * kMatrixSize * kMatrixSize * kMatrixSize / ms / 1e9;
}

}  // namespace

Roofs measure_roofs(GpuContext& context) {
  Roofs roofs;
  measure_copy(context, roofs);
  measure_matrix(context, roofs);
  return roofs;
}

}  // namespace shakedown::gpu
