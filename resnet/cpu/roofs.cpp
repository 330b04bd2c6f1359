#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "resnet/cpu/context.hpp"

namespace shakedown::cpu {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{256} << 20;  // beyond any cache's share of a rank
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr int kMatrixSize = 2048;
constexpr int kRuns = 10;

/// Time of the fastest of `kRuns` runs, as other users of the processor slow the rest. A first run,
/// not timed, touches the memory.
template <class Body>
double fastest_ms(Body&& body) {
  using Clock = std::chrono::steady_clock;
  body();
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    const auto start = Clock::now();
    body();
    const std::chrono::duration<double, std::milli> ms = Clock::now() - start;
    fastest = std::min(fastest, ms.count());
  }
  return fastest;
}

/// Uses all threads, for which Device::copy is not made.
void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t pieces = bytes / kPieceBytes;
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < pieces; ++i)
    std::memcpy(to + i * kPieceBytes, from + i * kPieceBytes, kPieceBytes);
}

/// Numbers from -0.5 to 0.5 that are written by the threads that read them.
void fill(float* x, std::size_t count) {
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < count; ++i)
    x[i] = static_cast<float>(i * 2654435761U % 1024) / 1024.0F - 0.5F;
}

}  // namespace

Roofs measure_roofs(CpuContext& context) {
  Device& device = context.device;
  Roofs roofs{0, kCopyBytes, 0, kMatrixSize};
  {
    const Buffer from(device, kCopyBytes);
    const Buffer to(device, kCopyBytes);
    fill(static_cast<float*>(from.data()), kCopyBytes / sizeof(float));
    const double ms = fastest_ms([&] {
      copy(static_cast<std::byte*>(to.data()), static_cast<const std::byte*>(from.data()),
           kCopyBytes);
    });
    roofs.copy_gbs = 2.0 * static_cast<double>(kCopyBytes) / ms / 1e6;
  }
  constexpr auto n = static_cast<std::size_t>(kMatrixSize);
  const Buffer matrices(device, 3 * n * n * sizeof(float));
  auto* const a = static_cast<float*>(matrices.data());
  fill(a, 3 * n * n);
  const double ms = fastest_ms([&] {
    gemm({'N', 'N', kMatrixSize, kMatrixSize, kMatrixSize}, a, a + n * n, 0, a + 2 * n * n);
  });
  roofs.matrix_tflops = 2.0 * kMatrixSize * kMatrixSize * kMatrixSize / ms / 1e9;
  return roofs;
}

}  // namespace shakedown::cpu
