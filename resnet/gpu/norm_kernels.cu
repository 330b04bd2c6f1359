// Batch normalisation, forward: statistics, and what is done with them in one pass.
#include "common/ensure.hpp"

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
  float origin[V] = {};

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
  Affine<V> affine = {};

  __device__ Loaded load(std::size_t i) const { return Pack<T>::load(z + i * V); }
  __device__ void begin(unsigned group) { affine.load(norm, group); }
  __device__ void store(std::size_t i, Loaded x) const {
#pragma unroll
    for (int v = 0; v < V; ++v) x.x[v] = from_float<T>(relu(affine.of(to_float(x.x[v]), v)));
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
  AffineWithShortcut<V, kNormShortcut> affine = {};

  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(z + i * V), Pack<T>::load(shortcut + i * V)};
  }
  __device__ void begin(unsigned group) { affine.load(norm, shortcut_norm, group); }
  __device__ void store(std::size_t i, const Loaded& in) const {
    Pack<T> out;
    unsigned bits = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float s = to_float(in.s.x[v]);
      const float sum = affine.of(to_float(in.x.x[v]), s, v);
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

void batch_statistics(const void* z, const NormParameters& norm, const NormVectors& vectors,
                      float* scratch, const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    reduce<T>(Statistics<T>{as<T>(z)},
              FinishStatistics<T>{as<T>(z), norm, vectors, Count::of(on.shape)}, scratch, on);
  });
}

void statistics_of_sums(const float* sums, const NormParameters& norm, const NormVectors& vectors,
                        const Launch& on) {
  constexpr int kChannels = 32;  // a block: the few there are spread over multiprocessors
  statistics_of_sums_kernel<<<static_cast<unsigned>((on.shape.c + kChannels - 1) / kChannels),
                              kChannels, 0, on.stream>>>(sums, on.shape.c, Count::of(on.shape),
                                                         norm, vectors);
  CHECK_LAUNCH();
}

void running_statistics(int channels, const NormParameters& norm, const NormVectors& vectors,
                        cudaStream_t stream) {
  running_statistics_kernel<<<static_cast<unsigned>((channels + kThreads - 1) / kThreads), kThreads,
                              0, stream>>>(channels, norm, vectors);
  CHECK_LAUNCH();
}

void normalise_relu(const void* z, const NormVectors& norm, void* y, const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    elementwise<T>(NormaliseRelu<T>{as<T>(z), as<T>(y), norm}, on);
  });
}

void normalise_add_relu(const void* z, const BlockEnd& end, const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    const auto run = [&]<int kNormShortcut>() {
      elementwise<T>(
          NormaliseAddRelu<T, kNormShortcut != 0>{as<T>(z), as<T>(end.shortcut), as<T>(end.y),
                                                  end.mask, end.norm,
                                                  end.shortcut_norm.value_or(NormVectors{})},
          on);
    };
    with_constant<0, 1>(end.shortcut_norm ? 1 : 0, run);
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
  Affine<V> affine = {};
  float mean[V] = {};

  __device__ void begin(unsigned group) {
    affine.load(norm, group);
    load_channels(norm.mean, group, mean);
  }
  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(dy + i * V), Pack<T>::load(z + i * V)};
  }
  __device__ void add(std::size_t, const Loaded& in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float value = to_float(in.x.x[v]);
      const float gradient = relu_passes(affine.of(value, v)) ? to_float(in.d.x[v]) : 0.0F;
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
  NormDerivative<V> derivative = {};
  Affine<V> affine = {};

  __device__ Loaded load(std::size_t i) const {
    return {Pack<T>::load(dy + i * V), Pack<T>::load(z + i * V)};
  }
  __device__ void begin(unsigned group) {
    derivative.load(norm, group);
    if constexpr (kRelu) affine.load(norm, group);
  }
  __device__ void store(std::size_t i, const Loaded& in) const {
    Pack<T> out;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float x = to_float(in.x.x[v]);
      const float gradient = !kRelu || relu_passes(affine.of(x, v)) ? to_float(in.d.x[v]) : 0.0F;
      out.x[v] = from_float<T>(derivative.of(gradient, x, v));
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
  float mean[2][V] = {};

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
    for (int j = 0; j < kCentred; ++j) in.z[j] = Pack<T>::load(as<T>(centred.tensors[j].z) + i * V);
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

}  // namespace

int normalise_relu_backward(const void* dy, const void* z, const NormVectors& norm, float* partials,
                            const Launch& on) {
  return with_type(on.type, [&]<class T>(T) {
    return reduce_to_partials<T>(ReluSums<T>{as<T>(dy), as<T>(z), norm}, partials, on);
  });
}

int add_relu_backward(void* dy_a, const Addend& dy_b, const std::uint8_t* mask,
                      const CentredTensors& centred, float* partials, const Launch& on) {
  ENSURE(dy_b.stride == 1 || dy_b.stride == 2, "a second addend: of stride 1 or 2");
  return with_type(on.type, [&]<class T>(T) {
    const auto run = [&]<Second kSecond, int kCentred>() {
      return reduce_to_partials<T>(
          AddReluSums<T, kSecond, kCentred>{
              as<T>(dy_a),
              {as<T>(dy_b.data), EvenPixels(on.shape)},
              static_cast<unsigned>(floor_log2(Extent::of<T>(on.shape).groups)),
              mask,
              centred},
          partials, on);
    };
    return with_constant<0, 1, 2>(centred.count, [&]<int kCentred>() {
      if (dy_b.data == nullptr) return run.template operator()<Second::none, kCentred>();
      if (dy_b.stride == 1) return run.template operator()<Second::whole, kCentred>();
      return run.template operator()<Second::even, kCentred>();
    });
  });
}

void finish_norm_gradients(const float* partials, int count, std::span<const AddedNorm> norms,
                           float* sum, const Launch& on) {
  ENSURE(norms.size() + (sum != nullptr ? 1 : 0) <= 2, "norms whose gradients are finished");
  if (norms.empty()) return sum_partials(partials, count, on.shape.c, sum, on.stream);
  const float share = share_of_element(on.shape);
  const AddedNorm &first = norms.front(), &last = norms.back();
  const auto finish = [&]<int kSums>(const auto& of_channel) {
    finish_partials<kSums>(of_channel, partials, count, on.shape.c, on.stream);
  };
  with_type(on.type, [&]<class T>(T) {
    const FinishNormGradient<T> one{first.parameters, first.vectors, share};
    if (sum != nullptr)
      finish.template operator()<2>(FinishSumAndNormGradient<T>{sum, one});
    else if (norms.size() == 1)
      finish.template operator()<2>(one);
    else
      finish.template operator()<3>(FinishTwoNormGradients<T>{
          first.parameters, first.vectors, last.parameters, last.vectors, share});
  });
}

void normalise_apply(const void* dy, const void* z, const NormVectors& norm, bool relu, void* dz,
                     const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    with_constant<0, 1>(relu ? 1 : 0, [&]<int kRelu>() {
      elementwise<T>(ApplyGradient<T, kRelu != 0>{as<T>(dy), as<T>(z), as<T>(dz), norm}, on);
    });
  });
}

}  // namespace shakedown::gpu
