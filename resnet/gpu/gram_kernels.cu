// The small matrices of a norm through the Gram matrix (gram_kernels.hpp), and the sums it takes of
// a convolution's input.
#include "resnet/gpu/gram_kernels.hpp"

#include "resnet/gpu/fragment_places.hpp"
#include "resnet/gpu/passes.cuh"

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

struct StoreSum {
  float* to;
  __device__ void operator()(int i, const double (&sums)[1]) const {
    to[i] = static_cast<float>(sums[0]);
  }
};

/// Row k of D from its parts, the norm's gradient and coefficients of channel k, and row k of a w.
template <class T>
struct Coefficients {
  const float* d_parts;
  int parts;
  const float* sum_of_g;
  NormParameters parameters;
  NormVectors norm;
  float share;
  GramMatrices m;
};

template <class T>
__global__ void __launch_bounds__(kThreads) coefficients_kernel(const Coefficients<T> p) {
  __shared__ double planes[kThreads];
  __shared__ double dots[kThreads];
  const int k = static_cast<int>(blockIdx.x);
  const int channels = p.m.channels;
  const int c = static_cast<int>(threadIdx.x) % channels;
  const int plane = static_cast<int>(threadIdx.x) / channels;
  const int count = kThreads / channels;  // of planes: each adds up its share of the parts
  double sum = 0;
#pragma unroll 8
  for (int part = plane; part < p.parts; part += count)
    sum +=
        p.d_parts[(std::size_t{static_cast<unsigned>(part)} * static_cast<unsigned>(p.m.filters) +
                   static_cast<unsigned>(k)) *
                      static_cast<unsigned>(channels) +
                  static_cast<unsigned>(c)];
  planes[threadIdx.x] = sum;
  __syncthreads();
  const float w = to_float(static_cast<const T*>(p.m.w)[k * channels + c]);
  if (plane == 0) {
    for (int other = 1; other < count; ++other) sum += planes[other * channels + c];
    p.m.d[k * channels + c] = static_cast<float>(sum);
    dots[c] = sum * static_cast<double>(w);
  }
  for (int half = channels / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) dots[threadIdx.x] += dots[threadIdx.x + half];
  }
  __syncthreads();
  const double sum_of_g = static_cast<double>(p.sum_of_g[k]);
  if (threadIdx.x == 0)
    finish_norm_gradient<T>(k, sum_of_g, dots[0] - static_cast<double>(p.norm.mean[k]) * sum_of_g,
                            p.share, p.parameters, p.norm);
  if (plane != 0) return;
  const float a = p.parameters.gamma[k] * p.norm.invstd[k];
  static_cast<T*>(p.m.placed)[placed_column(static_cast<unsigned>(c)) *
                                  static_cast<unsigned>(channels + p.m.filters) +
                              static_cast<unsigned>(channels + k)] = from_float<T>(a * w);
}

constexpr int kRowsOfH = 4;  // of a block
constexpr int kThreadsOfH = 1024;

/// H = w' (b w), kRowsOfH rows a block; the largest of the block; the first block: w'c.
template <class T>
__global__ void __launch_bounds__(kThreadsOfH)
    input_matrix_kernel(const GramMatrices m, const NormVectors norm) {
  __shared__ float shared[kRowsOfH + 1][kThreadsOfH];
  __shared__ float largest[kThreadsOfH / 32];
  const auto* w = static_cast<const T*>(m.w);
  const int c = static_cast<int>(threadIdx.x) % m.channels;
  const int slice = static_cast<int>(threadIdx.x) / m.channels;
  const int slices = kThreadsOfH / m.channels;
  const int first = static_cast<int>(blockIdx.x) * kRowsOfH;
  float sums[kRowsOfH + 1] = {};
#pragma unroll 4
  for (int k = slice; k < m.filters; k += slices) {
    const float of_c = to_float(w[k * m.channels + c]);
    const float weighted = norm.grad_b[k] * of_c;
    const auto rows = Vector<T, kRowsOfH>::load(w + k * m.channels + first);
#pragma unroll
    for (int i = 0; i < kRowsOfH; ++i) sums[i] += weighted * to_float(rows.x[i]);
    sums[kRowsOfH] += norm.grad_c[k] * of_c;
  }
#pragma unroll
  for (int i = 0; i <= kRowsOfH; ++i) shared[i][threadIdx.x] = sums[i];
  __syncthreads();
  float most = 0;
  if (slice == 0) {
#pragma unroll
    for (int i = 0; i <= kRowsOfH; ++i) {
      float total = 0;
      for (int s = 0; s < slices; ++s) total += shared[i][s * m.channels + c];
      if (i < kRowsOfH) {
        m.h[(first + i) * m.channels + c] = total;
        most = fmaxf(most, fabsf(total));  // ignores a NaN
      } else if (blockIdx.x == 0) {
        m.bias[c] = total;
      }
    }
  }
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, step));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < m.channels / 32; ++i) most = fmaxf(most, largest[i]);
  m.maxima[blockIdx.x] = most;
}

/// The power of two that brings `most` to 512 or more, below 1,024; 1 where there is none.
__device__ int exponent_for(float most) {
  if (most == 0 || !isfinite(most)) return 0;
  int exponent = 0;
  frexpf(most, &exponent);
  return max(-100, min(100, 10 - exponent));
}

/// H, scaled, where the product reads it: a block per row.
template <class T>
__global__ void place_kernel(const GramMatrices m) {
  float most = 0;
  for (int i = 0; i < m.channels / kRowsOfH; ++i) most = fmaxf(most, m.maxima[i]);
  const int exponent = exponent_for(most);
  const unsigned column = blockIdx.x;
  const auto channels = static_cast<unsigned>(m.channels);
  const unsigned depth = channels + static_cast<unsigned>(m.filters);
  // H is symmetric: its row is its column
  static_cast<T*>(m.placed)[placed_column(column) * depth + threadIdx.x] =
      from_float<T>(ldexpf(m.h[column * channels + threadIdx.x], exponent));
  if (column == 0 && threadIdx.x == 0) *m.unscale = ldexpf(1, -exponent);
}

constexpr int kFiltersAtOnce = 8;  // of a block

/// dw = a D + b w G + c s', kFiltersAtOnce rows a block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_gradient_kernel(const GramMatrices m, const NormVectors norm, const float* gram,
                           const float* sum_of_y, T* dw) {
  __shared__ float shared[kFiltersAtOnce][kThreads];
  const auto* w = static_cast<const T*>(m.w);
  const int c = static_cast<int>(threadIdx.x) % m.channels;
  const int slice = static_cast<int>(threadIdx.x) / m.channels;
  const int slices = kThreads / m.channels;
  const int first = static_cast<int>(blockIdx.x) * kFiltersAtOnce;
  float sums[kFiltersAtOnce] = {};
#pragma unroll 4
  for (int j = slice; j < m.channels; j += slices) {
    const float g = gram[j * m.channels + c];
#pragma unroll
    for (int i = 0; i < kFiltersAtOnce; ++i)
      sums[i] += to_float(w[(first + i) * m.channels + j]) * g;
  }
#pragma unroll
  for (int i = 0; i < kFiltersAtOnce; ++i) shared[i][threadIdx.x] = sums[i];
  __syncthreads();
  if (slice != 0) return;
#pragma unroll
  for (int i = 0; i < kFiltersAtOnce; ++i) {
    float total = 0;
    for (int s = 0; s < slices; ++s) total += shared[i][s * m.channels + c];
    const int k = first + i;
    dw[k * m.channels + c] = from_float<T>(norm.grad_a[k] * m.d[k * m.channels + c] +
                                           norm.grad_b[k] * total + norm.grad_c[k] * sum_of_y[c]);
  }
}

void check(const GramMatrices& m) {
  ENSURE(m.channels == 64 || m.channels == 128, "channels of a norm through the Gram matrix");
  ENSURE(m.filters % kFiltersAtOnce == 0, "filters of a norm through the Gram matrix");
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
  finish_partials<1>(StoreSum{to}, partials, count, size, stream);
}

void gram_coefficients(const float* d_parts, int parts, const float* sum_of_g,
                       const NormParameters& parameters, const NormVectors& norm, float share,
                       const GramMatrices& matrices, DataType type, cudaStream_t stream) {
  check(matrices);
  const auto filters = static_cast<unsigned>(matrices.filters);
  const auto channels = static_cast<unsigned>(matrices.channels);
  with_type(type, [&]<class T>(T) {
    coefficients_kernel<T><<<filters, kThreads, 0, stream>>>(
        {d_parts, parts, sum_of_g, parameters, norm, share, matrices});
    CHECK_LAUNCH();
    input_matrix_kernel<T><<<channels / kRowsOfH, kThreadsOfH, 0, stream>>>(matrices, norm);
    CHECK_LAUNCH();
    place_kernel<T><<<channels, channels, 0, stream>>>(matrices);
    CHECK_LAUNCH();
  });
}

void gram_weight_gradient(const GramMatrices& matrices, const NormVectors& norm, const float* gram,
                          const float* sum_of_y, void* dw, DataType type, cudaStream_t stream) {
  check(matrices);
  const auto filters = static_cast<unsigned>(matrices.filters);
  with_type(type, [&]<class T>(T) {
    weight_gradient_kernel<T><<<filters / kFiltersAtOnce, kThreads, 0, stream>>>(
        matrices, norm, gram, sum_of_y, static_cast<T*>(dw));
    CHECK_LAUNCH();
  });
}

}  // namespace shakedown::gpu
