// Batch normalisation, forward: statistics, and what is done with them in one pass.
#include "resnet/gpu/norm_statistics.cuh"
#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {
namespace {

/// Sums of z - k and (z - k)^2, where k is the first row: near the mean, so that the variance does
/// not cancel.
template <class T>
struct Statistics {
  static constexpr int kSums = 2;
  static constexpr unsigned kRows = 4;
  static constexpr int V = vector_width<T>;
  using Loaded = Pack<T>;
  const T* z;
  float origin[V];

  __device__ void begin(unsigned group) {
    const auto first = Pack<T>::load(z + group * V);
#pragma unroll
    for (int v = 0; v < V; ++v) origin[v] = to_float(first.x[v]);
  }
  __device__ Loaded load(std::size_t i) const { return Pack<T>::load(z + i * V); }
  __device__ void add(std::size_t, const Loaded& in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float x = to_float(in.x[v]) - origin[v];
      sums[0][v] += x;
      sums[1][v] += x * x;
    }
  }
};

template <class T>
struct FinishStatistics {
  const T* z;
  NormParameters parameters;
  NormVectors vectors;
  Count count;

  __device__ void operator()(int c, const double (&sums)[2]) const {
    set_statistics(c, to_float(z[c]), sums[0], sums[1], count, parameters, vectors);
  }
};

__global__ void statistics_of_sums_kernel(const float* sums, int channels, Count count,
                                          NormParameters p, NormVectors n) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c < channels) set_statistics(c, 0, sums[c], sums[channels + c], count, p, n);
}

__global__ void running_statistics_kernel(int channels, NormParameters p, NormVectors n) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c < channels) set_scale_shift(c, p.running_mean[c], p.running_variance[c], p, n);
}

template <class T>
struct NormaliseRelu {
  static constexpr unsigned kVectors = 4;
  static constexpr int kBlocks = 3;
  static constexpr int V = vector_width<T>;
  using Loaded = Pack<T>;
  const T* z;
  T* y;
  NormVectors norm;
  float scale[V];
  float shift[V];

  __device__ Loaded load(std::size_t i) const { return Pack<T>::load(z + i * V); }
  __device__ void begin(unsigned group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
  }
  __device__ void store(std::size_t i, Loaded x) const {
#pragma unroll
    for (int v = 0; v < V; ++v)
      x.x[v] = from_float<T>(relu(to_float(x.x[v]) * scale[v] + shift[v]));
    x.store(y + i * V);
  }
};

template <class T, bool kNormShortcut>
struct NormaliseAddRelu {
  static constexpr unsigned kVectors = 4;
  static constexpr int kBlocks = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    Pack<T> x, s;
  };
  const T* z;
  const T* shortcut;
  T* y;
  std::uint8_t* mask;
  NormVectors norm;
  NormVectors shortcut_norm;
  float scale[V];
  float shift[V];
  float shortcut_scale[V];

  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(z + i * V), Pack<T>::load(shortcut + i * V)};
  }
  __device__ void begin(unsigned group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
    if constexpr (kNormShortcut) {
      float shortcut_shift[V];
      load_channels(shortcut_norm.scale, group, shortcut_scale);
      load_channels(shortcut_norm.shift, group, shortcut_shift);
#pragma unroll
      for (int v = 0; v < V; ++v) shift[v] += shortcut_shift[v];
    }
  }
  __device__ void store(std::size_t i, const Loaded& in) const {
    Pack<T> out;
    unsigned bits = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float s = to_float(in.s.x[v]);
      const float sum =
          to_float(in.x.x[v]) * scale[v] + shift[v] + (kNormShortcut ? s * shortcut_scale[v] : s);
      bits |= relu_passes(sum) ? 1U << v : 0U;
      out.x[v] = from_float<T>(relu(sum));
    }
    out.store(y + i * V);
    mask[i] = static_cast<std::uint8_t>(bits);
  }
};

}  // namespace

std::size_t reduction_scratch(const ActivationShape& shape, DataType type, int sums) {
  const auto width = static_cast<int>(16 / size_of(type));
  const ReductionShape cut(shape.count() / static_cast<std::size_t>(shape.c),
                           static_cast<unsigned>(shape.c / width));
  return static_cast<std::size_t>(cut.chunks) * static_cast<std::size_t>(sums) *
         static_cast<std::size_t>(shape.c);
}

std::size_t mask_bytes(const ActivationShape& shape, DataType type) {
  return shape.count() * size_of(type) / 16;
}

void batch_statistics(const void* z, const ActivationShape& shape, DataType type,
                      const NormParameters& norm, const NormVectors& vectors, float* scratch,
                      cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    const auto* in = static_cast<const T*>(z);
    reduce<T>(Statistics<T>{in, {}}, FinishStatistics<T>{in, norm, vectors, Count::of(shape)},
              shape, scratch, stream);
  });
}

void statistics_of_sums(const float* sums, const ActivationShape& shape, const NormParameters& norm,
                        const NormVectors& vectors, cudaStream_t stream) {
  constexpr int kChannels = 32;  // a block: the few there are spread over multiprocessors
  statistics_of_sums_kernel<<<static_cast<unsigned>((shape.c + kChannels - 1) / kChannels),
                              kChannels, 0, stream>>>(sums, shape.c, Count::of(shape), norm,
                                                      vectors);
  CHECK_LAUNCH();
}

void running_statistics(int channels, const NormParameters& norm, const NormVectors& vectors,
                        cudaStream_t stream) {
  running_statistics_kernel<<<static_cast<unsigned>((channels + kThreads - 1) / kThreads), kThreads,
                              0, stream>>>(channels, norm, vectors);
  CHECK_LAUNCH();
}

void normalise_relu(const void* z, const NormVectors& norm, void* y, const ActivationShape& shape,
                    DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(NormaliseRelu<T>{static_cast<const T*>(z), static_cast<T*>(y), norm, {}, {}},
                   shape, stream);
  });
}

void normalise_add_relu(const void* z, const NormVectors& norm, const void* shortcut,
                        const NormVectors* shortcut_norm, void* y, std::uint8_t* mask,
                        const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    const auto* x = static_cast<const T*>(z);
    const auto* s = static_cast<const T*>(shortcut);
    auto* out = static_cast<T*>(y);
    if (shortcut_norm == nullptr)
      elementwise<T>(NormaliseAddRelu<T, false>{x, s, out, mask, norm, {}, {}, {}, {}}, shape,
                     stream);
    else
      elementwise<T>(NormaliseAddRelu<T, true>{x, s, out, mask, norm, *shortcut_norm, {}, {}, {}},
                     shape, stream);
  });
}

}  // namespace shakedown::gpu
