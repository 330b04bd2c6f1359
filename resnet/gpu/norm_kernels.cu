// Batch normalisation, forward: statistics, and what is done with them in one pass.
#include "common/error.hpp"
#include "resnet/gpu/norm_kernels.cuh"

#include "resnet/gpu/passes.cuh"
#include "resnet/gpu/unit_kernels.hpp"

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

// Batch normalisation, backward: sums over the gradient, then the gradient itself.

namespace {

/// Sums of the gradient after the ReLU, g, and of g * (z - mean).
template <class T>
struct ReluSums {
  static constexpr int kSums = 2;
  static constexpr unsigned kRows = 3;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    Pack<T> d, x;
  };
  const T* dy;
  const T* z;
  NormVectors norm;
  float scale[V];
  float shift[V];
  float mean[V];

  __device__ void begin(unsigned group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
    load_channels(norm.mean, group, mean);
  }
  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(dy + i * V), Pack<T>::load(z + i * V)};
  }
  __device__ void add(std::size_t, const Loaded& in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float value = to_float(in.x.x[v]);
      const float gradient = relu_passes(value * scale[v] + shift[v]) ? to_float(in.d.x[v]) : 0.0F;
      sums[0][v] += gradient;
      sums[1][v] += gradient * (value - mean[v]);
    }
  }
};

template <class T, bool kRelu>
struct ApplyGradient {
  static constexpr unsigned kVectors = 4;
  static constexpr int kBlocks = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    Pack<T> d, x;
  };
  const T* dy;
  const T* z;
  T* dz;
  NormVectors norm;
  float a[V];
  float b[V];
  float c[V];
  float scale[V];
  float shift[V];

  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(dy + i * V), Pack<T>::load(z + i * V)};
  }
  __device__ void begin(unsigned group) {
    load_channels(norm.grad_a, group, a);
    load_channels(norm.grad_b, group, b);
    load_channels(norm.grad_c, group, c);
    if constexpr (kRelu) {
      load_channels(norm.scale, group, scale);
      load_channels(norm.shift, group, shift);
    }
  }
  __device__ void store(std::size_t i, const Loaded& in) const {
    Pack<T> out;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float x = to_float(in.x.x[v]);
      const float gradient =
          !kRelu || relu_passes(x * scale[v] + shift[v]) ? to_float(in.d.x[v]) : 0.0F;
      out.x[v] = from_float<T>(a[v] * gradient + b[v] * x + c[v]);
    }
    out.store(dz + i * V);
  }
};

/// A second addend: none, a whole tensor, or its even rows and columns.
enum class Second { none, whole, even };

/// dsum, in the place of dy_a; sums of it, and of dsum * (z - mean) for kCentred tensors z.
template <class T, Second kSecond, int kCentred>
struct AddReluSums {
  static constexpr int kSums = 1 + kCentred;
  static constexpr unsigned kRows = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    Pack<T> d, e, z[2];
    unsigned bits;
  };
  T* dy_a;
  EvenVectors<T> dy_b;
  unsigned group_bits;  // the groups are their power of two
  const std::uint8_t* mask;
  CentredTensors centred;
  float mean[2][V];

  __device__ void begin(unsigned group) {
#pragma unroll
    for (int j = 0; j < kCentred; ++j) load_channels(centred.tensors[j].mean, group, mean[j]);
  }
  __device__ Loaded load(std::size_t i) const {
    Loaded in;
    in.d = Pack<T>::load(dy_a + i * V);
    if constexpr (kSecond == Second::whole) in.e = Pack<T>::load(dy_b.data + i * V);
    if constexpr (kSecond == Second::even) {
      const auto vector = static_cast<unsigned>(i);
      const unsigned groups = 1U << group_bits;
      in.e = dy_b.load(vector >> group_bits, groups, vector & (groups - 1));
    }
#pragma unroll
    for (int j = 0; j < kCentred; ++j)
      in.z[j] = Pack<T>::load(static_cast<const T*>(centred.tensors[j].z) + i * V);
    in.bits = mask[i];
    return in;
  }
  __device__ void add(std::size_t i, Loaded in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if constexpr (kSecond != Second::none)
        in.d.x[v] = from_float<T>(to_float(in.d.x[v]) + to_float(in.e.x[v]));
      if (!(in.bits >> v & 1U)) in.d.x[v] = from_float<T>(0.0F);
      const float gradient = to_float(in.d.x[v]);
      sums[0][v] += gradient;
#pragma unroll
      for (int j = 0; j < kCentred; ++j)
        sums[1 + j][v] += gradient * (to_float(in.z[j].x[v]) - mean[j][v]);
    }
    in.d.store(dy_a + i * V);
  }
};

template <class T>
struct FinishTwoNormGradients {
  NormParameters parameters;
  NormVectors vectors;
  NormParameters shortcut_parameters;
  NormVectors shortcut_vectors;
  float share;

  __device__ void operator()(int c, const double (&sums)[3]) const {
    finish_norm_gradient<T>(c, sums[0], sums[1], share, parameters, vectors);
    finish_norm_gradient<T>(c, sums[0], sums[2], share, shortcut_parameters, shortcut_vectors);
  }
};

/// Of the shortcut; the sum over dsum is kept.
template <class T>
struct FinishSumAndNormGradient {
  float* sum;
  FinishNormGradient<T> finish;

  __device__ void operator()(int c, const double (&sums)[2]) const {
    sum[c] = static_cast<float>(sums[0]);
    finish(c, sums);
  }
};

template <class T, Second kSecond>
int launch_add_relu_backward(void* dy_a, const void* dy_b, const std::uint8_t* mask,
                             const CentredTensors& centred, const ActivationShape& shape,
                             float* partials, cudaStream_t stream) {
  const auto with = [&]<int kCentred>(std::integral_constant<int, kCentred>) {
    return reduce_to_partials<T>(
        AddReluSums<T, kSecond, kCentred>{
            static_cast<T*>(dy_a),
            {static_cast<const T*>(dy_b), EvenPixels(shape)},
            static_cast<unsigned>(floor_log2(Extent::of<T>(shape).groups)),
            mask,
            centred,
            {}},
        shape, partials, stream);
  };
  switch (centred.count) {
    case 0: return with(std::integral_constant<int, 0>{});
    case 1: return with(std::integral_constant<int, 1>{});
    default: return with(std::integral_constant<int, 2>{});
  }
}

}  // namespace

int normalise_relu_backward(const void* dy, const void* z, const NormVectors& norm,
                            const ActivationShape& shape, DataType type, float* partials,
                            cudaStream_t stream) {
  int count = 0;
  with_type(type, [&]<class T>(T) {
    count = reduce_to_partials<T>(
        ReluSums<T>{static_cast<const T*>(dy), static_cast<const T*>(z), norm, {}, {}, {}}, shape,
        partials, stream);
  });
  return count;
}

void finish_normalise_relu_backward(const float* partials, int count,
                                    const NormParameters& parameters, const NormVectors& norm,
                                    const ActivationShape& shape, DataType type,
                                    cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    finish_partials<2>(FinishNormGradient<T>{parameters, norm, share_of_element(shape)}, partials,
                       count, shape.c, stream);
  });
}

void normalise_relu_apply(const void* dy, const void* z, const NormVectors& norm, void* dz,
                          const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(ApplyGradient<T, true>{static_cast<const T*>(dy),
                                          static_cast<const T*>(z),
                                          static_cast<T*>(dz),
                                          norm,
                                          {},
                                          {},
                                          {},
                                          {},
                                          {}},
                   shape, stream);
  });
}

int add_relu_backward(void* dy_a, const Addend& dy_b, const std::uint8_t* mask,
                      const CentredTensors& centred, const ActivationShape& shape, DataType type,
                      float* partials, cudaStream_t stream) {
  ENSURE(dy_b.stride == 1 || dy_b.stride == 2, "a second addend: of stride 1 or 2");
  int count = 0;
  with_type(type, [&]<class T>(T) {
    const auto launch = dy_b.data == nullptr ? launch_add_relu_backward<T, Second::none>
                        : dy_b.stride == 1   ? launch_add_relu_backward<T, Second::whole>
                                             : launch_add_relu_backward<T, Second::even>;
    count = launch(dy_a, dy_b.data, mask, centred, shape, partials, stream);
  });
  return count;
}

void finish_add_relu_backward(const float* partials, int count, const AddedNorm& main,
                              const AddedNorm* shortcut, const ActivationShape& shape,
                              DataType type, cudaStream_t stream) {
  const float share = share_of_element(shape);
  with_type(type, [&]<class T>(T) {
    if (shortcut == nullptr)
      finish_partials<2>(FinishNormGradient<T>{main.parameters, main.vectors, share}, partials,
                         count, shape.c, stream);
    else
      finish_partials<3>(FinishTwoNormGradients<T>{main.parameters, main.vectors,
                                                   shortcut->parameters, shortcut->vectors, share},
                         partials, count, shape.c, stream);
  });
}

void finish_add_relu_backward_sum(const float* partials, int count, float* sum,
                                  const AddedNorm* shortcut, const ActivationShape& shape,
                                  DataType type, cudaStream_t stream) {
  if (shortcut == nullptr) return sum_partials(partials, count, shape.c, sum, stream);
  with_type(type, [&]<class T>(T) {
    finish_partials<2>(
        FinishSumAndNormGradient<T>{
            sum, {shortcut->parameters, shortcut->vectors, share_of_element(shape)}},
        partials, count, shape.c, stream);
  });
}

void normalise_apply(const void* dsum, const void* z, const NormVectors& norm, void* dz,
                     const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(ApplyGradient<T, false>{static_cast<const T*>(dsum),
                                           static_cast<const T*>(z),
                                           static_cast<T*>(dz),
                                           norm,
                                           {},
                                           {},
                                           {},
                                           {},
                                           {}},
                   shape, stream);
  });
}

}  // namespace shakedown::gpu
