#include "resnet/gpu/reduce.cuh"

namespace shakedown::gpu {
namespace {

double count_of(const ActivationShape& shape) {
  return static_cast<double>(shape.count()) / shape.c;
}

// ---- forward ------------------------------------------------------------------------------------

/// Sums of z - k and (z - k)^2, where k is the first row: near the mean, so that the variance does
/// not cancel.
template <class T>
struct Statistics {
  static constexpr int kSums = 2;
  static constexpr int V = vector_width<T>;
  const T* z;
  float origin[V];

  __device__ void begin(int group) {
    const auto first = Pack<T>::load(z + group * V);
#pragma unroll
    for (int v = 0; v < V; ++v) origin[v] = to_float(first.x[v]);
  }
  __device__ void operator()(std::size_t i, float (&sums)[kSums][V]) const {
    const auto loaded = Pack<T>::load(z + i * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float x = to_float(loaded.x[v]) - origin[v];
      sums[0][v] += x;
      sums[1][v] += x * x;
    }
  }
};

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
    running_mean += kNormMomentum * (static_cast<float>(mean) - running_mean);
    running_variance +=
        kNormMomentum * (static_cast<float>(variance * count / (count - 1)) - running_variance);
  }
};

__global__ void running_statistics_kernel(int channels, NormParameters p, NormVectors n) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c < channels)
    set_scale_shift(c, p.running_mean[c],
                    rsqrt(static_cast<double>(p.running_variance[c]) + kNormEpsilon), p, n);
}

template <class T>
struct NormaliseRelu {
  static constexpr int V = vector_width<T>;
  const T* z;
  T* y;
  const float* scale;
  const float* shift;

  __device__ void operator()(std::size_t i, int group) const {
    auto x = Pack<T>::load(z + i * V);
    float a[V];
    float b[V];
    load_channels(scale, group, a);
    load_channels(shift, group, b);
#pragma unroll
    for (int v = 0; v < V; ++v) x.x[v] = from_float<T>(fmaxf(to_float(x.x[v]) * a[v] + b[v], 0.0F));
    x.store(y + i * V);
  }
};

template <class T, bool kNormShortcut>
struct NormaliseAddRelu {
  static constexpr int V = vector_width<T>;
  const T* z;
  const T* shortcut;
  T* y;
  std::uint8_t* mask;
  NormVectors norm;
  NormVectors shortcut_norm;

  __device__ void operator()(std::size_t i, int group) const {
    auto x = Pack<T>::load(z + i * V);
    const auto s = Pack<T>::load(shortcut + i * V);
    float a[V];
    float b[V];
    load_channels(norm.scale, group, a);
    load_channels(norm.shift, group, b);
    float added[V];
#pragma unroll
    for (int v = 0; v < V; ++v) added[v] = to_float(s.x[v]);
    if constexpr (kNormShortcut) {
      float c[V];
      float d[V];
      load_channels(shortcut_norm.scale, group, c);
      load_channels(shortcut_norm.shift, group, d);
#pragma unroll
      for (int v = 0; v < V; ++v) added[v] = added[v] * c[v] + d[v];
    }
    unsigned bits = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float sum = to_float(x.x[v]) * a[v] + b[v] + added[v];
      bits |= sum > 0 ? 1U << v : 0U;
      x.x[v] = from_float<T>(fmaxf(sum, 0.0F));
    }
    x.store(y + i * V);
    mask[i] = static_cast<std::uint8_t>(bits);
  }
};

// ---- backward -----------------------------------------------------------------------------------

template <class T>
struct ReluSums {
  static constexpr int kSums = 2;
  static constexpr int V = vector_width<T>;
  const T* dy;
  const T* z;
  NormVectors norm;
  float scale[V];
  float shift[V];
  float mean[V];

  __device__ void begin(int group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
    load_channels(norm.mean, group, mean);
  }
  __device__ void operator()(std::size_t i, float (&sums)[kSums][V]) const {
    const auto d = Pack<T>::load(dy + i * V);
    const auto x = Pack<T>::load(z + i * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float value = to_float(x.x[v]);
      const float gradient = value * scale[v] + shift[v] > 0 ? to_float(d.x[v]) : 0.0F;
      sums[0][v] += gradient;
      sums[1][v] += gradient * (value - mean[v]);
    }
  }
};

template <class T, bool kRelu>
struct ApplyGradient {
  static constexpr int V = vector_width<T>;
  const T* dy;
  const T* z;
  T* dz;
  NormVectors norm;

  __device__ void operator()(std::size_t i, int group) const {
    const auto d = Pack<T>::load(dy + i * V);
    auto x = Pack<T>::load(z + i * V);
    float a[V];
    float b[V];
    float c[V];
    load_channels(norm.grad_a, group, a);
    load_channels(norm.grad_b, group, b);
    load_channels(norm.grad_c, group, c);
    float passes[V];
    if constexpr (kRelu) {
      float scale[V];
      float shift[V];
      load_channels(norm.scale, group, scale);
      load_channels(norm.shift, group, shift);
#pragma unroll
      for (int v = 0; v < V; ++v) passes[v] = to_float(x.x[v]) * scale[v] + shift[v];
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float gradient = !kRelu || passes[v] > 0 ? to_float(d.x[v]) : 0.0F;
      x.x[v] = from_float<T>(a[v] * gradient + b[v] * to_float(x.x[v]) + c[v]);
    }
    x.store(dz + i * V);
  }
};

/// Sums of dsum, dsum * (z - mean) and, for a shortcut with a norm, dsum * (its z - mean).
template <class T, bool kTwo, bool kNormShortcut>
struct AddReluSums {
  static constexpr int kSums = kNormShortcut ? 3 : 2;
  static constexpr int V = vector_width<T>;
  const T* dy_a;
  const T* dy_b;
  const std::uint8_t* mask;
  T* dsum;
  const T* z;
  const float* mean_of_z;
  const T* s;
  const float* mean_of_s;
  float mean[V];
  float shortcut_mean[V];

  __device__ void begin(int group) {
    load_channels(mean_of_z, group, mean);
    if constexpr (kNormShortcut) load_channels(mean_of_s, group, shortcut_mean);
  }
  __device__ void operator()(std::size_t i, float (&sums)[kSums][V]) const {
    auto d = Pack<T>::load(dy_a + i * V);
    const auto x = Pack<T>::load(z + i * V);
    const unsigned bits = mask[i];
    if constexpr (kTwo) {
      const auto e = Pack<T>::load(dy_b + i * V);
#pragma unroll
      for (int v = 0; v < V; ++v) d.x[v] = from_float<T>(to_float(d.x[v]) + to_float(e.x[v]));
    }
    float gradient[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (!(bits >> v & 1U)) d.x[v] = from_float<T>(0.0F);
      gradient[v] = to_float(d.x[v]);
      sums[0][v] += gradient[v];
      sums[1][v] += gradient[v] * (to_float(x.x[v]) - mean[v]);
    }
    if constexpr (kNormShortcut) {
      const auto y = Pack<T>::load(s + i * V);
#pragma unroll
      for (int v = 0; v < V; ++v) sums[2][v] += gradient[v] * (to_float(y.x[v]) - shortcut_mean[v]);
    }
    d.store(dsum + i * V);
  }
};

template <class T>
struct FinishTwoNormGradients {
  NormParameters parameters;
  NormVectors vectors;
  NormParameters shortcut_parameters;
  NormVectors shortcut_vectors;
  double count;

  __device__ void operator()(int c, const double (&sums)[3]) const {
    finish_norm_gradient<T>(c, sums[0], sums[1], count, parameters, vectors);
    finish_norm_gradient<T>(c, sums[0], sums[2], count, shortcut_parameters, shortcut_vectors);
  }
};

template <class T, bool kTwo>
void launch_add_relu_backward(const T* dy_a, const T* dy_b, const std::uint8_t* mask, T* dsum,
                              const AddedNorm& main, const AddedNorm* shortcut,
                              const ActivationShape& shape, float* scratch, cudaStream_t stream) {
  const auto* z = static_cast<const T*>(main.z);
  if (shortcut == nullptr) {
    reduce<T>(
        AddReluSums<T, kTwo, false>{
            dy_a, dy_b, mask, dsum, z, main.vectors.mean, nullptr, nullptr, {}, {}},
        FinishNormGradient<T>{main.parameters, main.vectors, count_of(shape)}, shape, scratch,
        stream);
    return;
  }
  reduce<T>(AddReluSums<T, kTwo, true>{dy_a,
                                       dy_b,
                                       mask,
                                       dsum,
                                       z,
                                       main.vectors.mean,
                                       static_cast<const T*>(shortcut->z),
                                       shortcut->vectors.mean,
                                       {},
                                       {}},
            FinishTwoNormGradients<T>{main.parameters, main.vectors, shortcut->parameters,
                                      shortcut->vectors, count_of(shape)},
            shape, scratch, stream);
}

}  // namespace

std::size_t reduction_scratch(const ActivationShape& shape, DataType type, int sums) {
  const int width = static_cast<int>(16 / size_of(type));
  const ReductionShape cut(shape.count() / static_cast<std::size_t>(shape.c), shape.c / width);
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

void normalise_relu(const void* z, const NormVectors& norm, void* y, const ActivationShape& shape,
                    DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(
        NormaliseRelu<T>{static_cast<const T*>(z), static_cast<T*>(y), norm.scale, norm.shift},
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
      elementwise<T>(NormaliseAddRelu<T, false>{x, s, out, mask, norm, {}}, shape, stream);
    else
      elementwise<T>(NormaliseAddRelu<T, true>{x, s, out, mask, norm, *shortcut_norm}, shape,
                     stream);
  });
}

void normalise_relu_backward(const void* dy, const void* z, const ActivationShape& shape,
                             DataType type, const NormParameters& parameters,
                             const NormVectors& norm, float* scratch, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    reduce<T>(ReluSums<T>{static_cast<const T*>(dy), static_cast<const T*>(z), norm, {}, {}, {}},
              FinishNormGradient<T>{parameters, norm, count_of(shape)}, shape, scratch, stream);
  });
}

void normalise_relu_apply(const void* dy, const void* z, const NormVectors& norm, void* dz,
                          const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(ApplyGradient<T, true>{static_cast<const T*>(dy), static_cast<const T*>(z),
                                          static_cast<T*>(dz), norm},
                   shape, stream);
  });
}

void add_relu_backward(const void* dy_a, const void* dy_b, const std::uint8_t* mask, void* dsum,
                       const AddedNorm& main, const AddedNorm* shortcut,
                       const ActivationShape& shape, DataType type, float* scratch,
                       cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    const auto* a = static_cast<const T*>(dy_a);
    const auto* b = static_cast<const T*>(dy_b);
    auto* out = static_cast<T*>(dsum);
    if (b == nullptr)
      launch_add_relu_backward<T, false>(a, b, mask, out, main, shortcut, shape, scratch, stream);
    else
      launch_add_relu_backward<T, true>(a, b, mask, out, main, shortcut, shape, scratch, stream);
  });
}

void normalise_apply(const void* dsum, const void* z, const NormVectors& norm, void* dz,
                     const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(ApplyGradient<T, false>{static_cast<const T*>(dsum), static_cast<const T*>(z),
                                           static_cast<T*>(dz), norm},
                   shape, stream);
  });
}

}  // namespace shakedown::gpu
