// The sums that a norm through the Gram matrix takes (gram_kernels.hpp): of a convolution's input,
// of parts.
#include "resnet/gpu/block_sums.cuh"
#include "resnet/gpu/gram_kernels.hpp"

namespace shakedown::gpu {
namespace {

/// y = relu(z * scale + shift), and sums of y as it is stored.
template <class T>
struct NormaliseAndSum {
  static constexpr int kSums = 1;
  static constexpr unsigned kRows = 4;
  static constexpr int V = vector_width<T>;
  using Loaded = Pack<T>;
  const T* z;
  T* y;
  NormVectors norm;
  float scale[V];
  float shift[V];

  __device__ void begin(unsigned group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
  }
  __device__ Loaded load(std::size_t i) const { return Pack<T>::load(z + i * V); }
  __device__ void add(std::size_t i, Loaded in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      in.x[v] = from_float<T>(relu(to_float(in.x[v]) * scale[v] + shift[v]));
      sums[0][v] += to_float(in.x[v]);
    }
    in.store(y + i * V);
  }
};

template <unsigned kLanes>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const float* partials, unsigned count, unsigned size, float* to) {
  const unsigned first = blockIdx.x * 4 * kLanes;
  const double sum = sum_of_parts<kLanes>(partials + first, count, size);
  if (threadIdx.x < 4 * kLanes) to[first + threadIdx.x] = static_cast<float>(sum);
}

}  // namespace

int normalise_relu_sums(const void* z, const NormVectors& norm, void* y,
                        const ActivationShape& shape, DataType type, float* partials,
                        cudaStream_t stream) {
  int count = 0;
  with_type(type, [&]<class T>(T) {
    count = reduce_to_partials<T>(
        NormaliseAndSum<T>{static_cast<const T*>(z), static_cast<T*>(y), norm, {}, {}}, shape,
        partials, stream);
  });
  return count;
}

void sum_partials(const float* partials, int count, int size, float* to, cudaStream_t stream) {
  ENSURE(size % 32 == 0, "sums of parts: a multiple of 32");
  const auto parts = static_cast<unsigned>(count);
  const auto columns = static_cast<unsigned>(size);
  if (columns >= 4096)
    sum_kernel<8><<<columns / 32, kThreads, 0, stream>>>(partials, parts, columns, to);
  else  // few: more threads for each
    sum_kernel<2><<<columns / 8, kThreads, 0, stream>>>(partials, parts, columns, to);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
