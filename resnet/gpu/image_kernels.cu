// Kernels that write the network's input: images, and numbers that algorithms are timed on.
#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {
namespace {

template <class T, int kChannels>
__global__ void normalise_images_kernel(const std::uint8_t* images, T* x, std::size_t pixels) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= pixels) return;
  Vector<T, kChannels> out;
#pragma unroll
  for (int c = 3; c < kChannels; ++c) out.x[c] = from_float<T>(0.0F);
  constexpr float mean[3] = {kImageMean[0], kImageMean[1], kImageMean[2]};
  constexpr float deviation[3] = {kImageDeviation[0], kImageDeviation[1], kImageDeviation[2]};
#pragma unroll
  for (int c = 0; c < 3; ++c)
    out.x[c] = from_float<T>(
        (static_cast<float>(images[3 * i + static_cast<unsigned>(c)]) / 255.0F - mean[c]) /
        deviation[c]);
  out.store(x + kChannels * i);
}

template <class T>
__global__ void randomise_kernel(T* to, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  auto bits = static_cast<unsigned>(i) * 2654435761U;
  bits ^= bits >> 15;
  bits *= 2246822519U;
  bits ^= bits >> 13;
  to[i] = from_float<T>(static_cast<float>(bits) * 0x1p-31F - 1.0F);
}

__global__ void pause_kernel(unsigned long long nanoseconds) {
  unsigned long long start = 0;
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

}  // namespace

void normalise_images(const std::uint8_t* images, void* x, const ActivationShape& shape,
                      DataType type, cudaStream_t stream) {
  const std::size_t pixels = shape.count() / static_cast<std::size_t>(shape.c);
  const auto blocks = static_cast<unsigned>((pixels + kThreads - 1) / kThreads);
  with_type(type, [&]<class T>(T) {
    auto* out = static_cast<T*>(x);
    if (shape.c == 4)
      normalise_images_kernel<T, 4><<<blocks, kThreads, 0, stream>>>(images, out, pixels);
    else
      normalise_images_kernel<T, 8><<<blocks, kThreads, 0, stream>>>(images, out, pixels);
  });
  CHECK_LAUNCH();
}

void randomise(void* to, std::size_t count, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    randomise_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                       stream>>>(static_cast<T*>(to), count);
  });
  CHECK_LAUNCH();
}

void pause(double us, cudaStream_t stream) {
  pause_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(us * 1e3));
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
