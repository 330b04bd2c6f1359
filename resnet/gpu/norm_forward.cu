// Batch normalisation, forward: statistics, and what is done with them in one pass.
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

__device__ float running(float old, float batch) { return old + kNormMomentum * (batch - old); }

__device__ void set_scale_shift(int c, double mean, double invstd, const NormParameters& p,
                                const NormVectors& n) {
  n.mean[c] = static_cast<float>(mean);
  n.invstd[c] = static_cast<float>(invstd);
  n.scale[c] = static_cast<float>(p.gamma[c] * invstd);
  n.shift[c] = static_cast<float>(p.beta[c] - mean * p.gamma[c] * invstd);
}

template <class T>
struct FinishStatistics {
  const T* z;
  NormParameters parameters;
  NormVectors vectors;
  double count;

  __device__ void operator()(int c, const double (&sums)[2]) const {
    const double offset = sums[0] / count;
    const double mean = to_float(z[c]) + offset;
    const double variance = fmax(sums[1] / count - offset * offset, 0.0);
    set_scale_shift(c, mean, rsqrt(variance + kNormEpsilon), parameters, vectors);
    float& running_mean = parameters.running_mean[c];
    float& running_variance = parameters.running_variance[c];
    running_mean = running(running_mean, static_cast<float>(mean));
    running_variance =
        running(running_variance, static_cast<float>(variance * count / (count - 1)));
  }
};

__global__ void running_statistics_kernel(int channels, NormParameters p, NormVectors n) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c < channels)
    set_scale_shift(c, p.running_mean[c],
                    rsqrt(static_cast<double>(p.running_variance[c]) + kNormEpsilon), p, n);
}

/// The scale and shift of a thread's channels: ready, or made here of the convolution's sums. Every
/// thread makes its own; one a channel also keeps them, and the running statistics.
template <int V, bool kFromSums>
__device__ void scale_and_shift(const Norm& norm, unsigned group, bool keeps, float (&scale)[V],
                                float (&shift)[V]) {
  if constexpr (!kFromSums) {
    load_channels(norm.vectors.scale, group, scale);
    load_channels(norm.vectors.shift, group, shift);
    return;
  }
  const NormParameters& p = norm.parameters;
  float mean[V];
  float variance[V];
  load_channels(norm.sums, group, mean);
  load_channels(norm.sums + norm.channels, group, variance);
  load_channels(p.gamma, group, scale);
  load_channels(p.beta, group, shift);
  const float share = 1.0F / norm.count;
  float invstd[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    mean[v] *= share;
    variance[v] = fmaxf(variance[v] * share - mean[v] * mean[v], 0.0F);
    invstd[v] = rsqrtf(variance[v] + kNormEpsilon);
    scale[v] *= invstd[v];
    shift[v] -= mean[v] * scale[v];
  }
  if (!keeps) return;
  store_channels(norm.vectors.mean, group, mean);
  store_channels(norm.vectors.invstd, group, invstd);
  store_channels(norm.vectors.scale, group, scale);
  store_channels(norm.vectors.shift, group, shift);
  const float unbiased = norm.count / (norm.count - 1.0F);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float& running_mean = p.running_mean[group * V + static_cast<unsigned>(v)];
    float& running_variance = p.running_variance[group * V + static_cast<unsigned>(v)];
    running_mean = running(running_mean, mean[v]);
    running_variance = running(running_variance, variance[v] * unbiased);
  }
}

template <class T, bool kFromSums>
struct NormaliseRelu {
  static constexpr unsigned kVectors = 4;
  static constexpr int kBlocks = 3;
  static constexpr int V = vector_width<T>;
  using Loaded = Pack<T>;
  const T* z;
  T* y;
  Norm norm;
  float scale[V];
  float shift[V];

  __device__ Loaded load(std::size_t i) const { return Pack<T>::load(z + i * V); }
  __device__ void begin(unsigned group, bool first) {
    scale_and_shift<V, kFromSums>(norm, group, first, scale, shift);
  }
  __device__ void store(std::size_t i, Loaded x) const {
#pragma unroll
    for (int v = 0; v < V; ++v)
      x.x[v] = from_float<T>(fmaxf(to_float(x.x[v]) * scale[v] + shift[v], 0.0F));
    x.store(y + i * V);
  }
};

/// What is added to a normalised tensor: another as it is, or normalised too.
enum class Shortcut { plain, normed, normed_from_sums };

template <class T, bool kFromSums, Shortcut kShortcut>
struct NormaliseAddRelu {
  static constexpr bool kNormShortcut = kShortcut != Shortcut::plain;
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
  Norm norm;
  Norm shortcut_norm;
  float scale[V];
  float shift[V];
  float shortcut_scale[V];

  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(z + i * V), Pack<T>::load(shortcut + i * V)};
  }
  __device__ void begin(unsigned group, bool first) {
    scale_and_shift<V, kFromSums>(norm, group, first, scale, shift);
    if constexpr (kNormShortcut) {
      float shortcut_shift[V];
      scale_and_shift<V, kShortcut == Shortcut::normed_from_sums>(shortcut_norm, group, first,
                                                                  shortcut_scale, shortcut_shift);
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
      bits |= sum > 0 ? 1U << v : 0U;
      out.x[v] = from_float<T>(fmaxf(sum, 0.0F));
    }
    out.store(y + i * V);
    mask[i] = static_cast<std::uint8_t>(bits);
  }
};

/// Calls body with whether scale and shift are yet to be made of sums.
template <class Body>
void with_source(const Norm& norm, Body&& body) {
  if (norm.sums != nullptr)
    body(std::true_type{});
  else
    body(std::false_type{});
}

}  // namespace

std::size_t reduction_scratch(const ActivationShape& shape, DataType type, int sums) {
  const auto width = static_cast<int>(16 / size_of(type));
  const ReductionShape cut(static_cast<unsigned>(shape.count() / static_cast<unsigned>(shape.c)),
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
    reduce<T>(Statistics<T>{in, {}}, FinishStatistics<T>{in, norm, vectors, count_of(shape)}, shape,
              scratch, stream);
  });
}

void running_statistics(int channels, const NormParameters& norm, const NormVectors& vectors,
                        cudaStream_t stream) {
  running_statistics_kernel<<<static_cast<unsigned>((channels + kThreads - 1) / kThreads), kThreads,
                              0, stream>>>(channels, norm, vectors);
  CHECK_LAUNCH();
}

void normalise_relu(const void* z, const Norm& norm, void* y, const ActivationShape& shape,
                    DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    with_source(norm, [&](auto from_sums) {
      elementwise<T>(
          NormaliseRelu<T, from_sums()>{static_cast<const T*>(z), static_cast<T*>(y), norm, {}, {}},
          shape, stream);
    });
  });
}

void normalise_add_relu(const void* z, const Norm& norm, const void* shortcut,
                        const Norm* shortcut_norm, void* y, std::uint8_t* mask,
                        const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    const auto* x = static_cast<const T*>(z);
    const auto* s = static_cast<const T*>(shortcut);
    auto* out = static_cast<T*>(y);
    const auto launch = [&]<Shortcut kShortcut>() {
      with_source(norm, [&](auto from_sums) {
        elementwise<T>(
            NormaliseAddRelu<T, from_sums(), kShortcut>{
                x,
                s,
                out,
                mask,
                norm,
                shortcut_norm != nullptr ? *shortcut_norm : Norm{},
                {},
                {},
                {}},
            shape, stream);
      });
    };
    if (shortcut_norm == nullptr)
      launch.template operator()<Shortcut::plain>();
    else if (shortcut_norm->sums == nullptr)
      launch.template operator()<Shortcut::normed>();
    else
      launch.template operator()<Shortcut::normed_from_sums>();
  });
}

}  // namespace shakedown::gpu
