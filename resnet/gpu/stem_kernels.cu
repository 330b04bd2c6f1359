// The stem after its convolution: max-pool, norm and ReLU, forward and backward.

#include "resnet/gpu/passes.cuh"
#include "resnet/gpu/stem_passes.cuh"

namespace shakedown::gpu {
namespace {

/// Where a vector of a tensor with `groups` vectors per pixel lies.
struct Place4 {
  int n, h, w, group;

  __device__ Place4(std::size_t i, int groups, int height, int width) {
    auto rest = static_cast<unsigned>(i);  // activations have far fewer than 2^32 vectors
    group = static_cast<int>(rest % static_cast<unsigned>(groups));
    rest /= static_cast<unsigned>(groups);
    w = static_cast<int>(rest % static_cast<unsigned>(width));
    rest /= static_cast<unsigned>(width);
    h = static_cast<int>(rest % static_cast<unsigned>(height));
    n = static_cast<int>(rest / static_cast<unsigned>(height));
  }
};

__device__ std::size_t vector_at(int n, int h, int w, int group, int groups, int height,
                                 int width) {
  return ((static_cast<std::size_t>(n) * static_cast<unsigned>(height) + static_cast<unsigned>(h)) *
              static_cast<unsigned>(width) +
          static_cast<unsigned>(w)) *
             static_cast<unsigned>(groups) +
         static_cast<unsigned>(group);
}

struct Window {
  int groups, height, width;  // of z
  int pooled_height, pooled_width;
};

template <class T>
Window window_of(const ActivationShape& z) {
  const ActivationShape y = pooled(z);
  return {z.c / vector_width<T>, z.h, z.w, y.h, y.w};
}

/// One pooled vector a thread, from its window of nine.
template <class T>
struct StemPool {
  static constexpr unsigned kVectors = 1;
  static constexpr int kBlocks = 4;
  static constexpr int V = vector_width<T>;
  using Words = typename WindowMaximum<T>::Words;
  struct Loaded {
    Words x[9];
    unsigned inside;  // a bit a place of the window
  };
  const T* z;
  const float* gamma;
  T* peak;
  std::uint8_t* argmax;
  Window s;
  TurnedSigns<T> turned = {};

  /// Elements outside are read from the centre, and do not count.
  __device__ Loaded load(unsigned i) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    const auto* centre = reinterpret_cast<const unsigned*>(
        z + vector_at(at.n, 2 * at.h, 2 * at.w, at.group, s.groups, s.height, s.width) * V);
    Loaded in;
    in.inside = 0;
#pragma unroll
    for (int p = 0; p < 9; ++p) {
      const int h = 2 * at.h - 1 + p / 3;
      const int w = 2 * at.w - 1 + p % 3;
      const bool inside = h >= 0 && h < s.height && w >= 0 && w < s.width;
      const int step = ((p / 3 - 1) * s.width + p % 3 - 1) * s.groups;
      in.inside |= inside ? 1U << p : 0U;
      in.x[p] = Words::load(centre + (inside ? step : 0) * 4);
    }
    return in;
  }
  __device__ void begin(unsigned group) {
    float of_channels[V];
    load_channels(gamma, group, of_channels);
    turned = TurnedSigns<T>::of(of_channels);
  }
  __device__ void store(std::size_t i, const Loaded& in) const {
    WindowMaximum<T> most;
#pragma unroll
    for (int p = 0; p < 9; ++p)
      most.take(p, (in.inside >> p & 1U) != 0 ? turned.turn(in.x[p]) : WindowMaximum<T>::lowest());
    most.store(peak + i * V, argmax + i * V, turned);
  }
};

/// The norm's sums, taken over the pooled gradient: each element of it belongs to one of z. The
/// gradient is left where the ReLU passes it.
template <class T, bool kTwo>
struct StemSums {
  static constexpr int kSums = 2;
  static constexpr unsigned kRows = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    Pack<T> a, b, z;
  };
  T* dy_a;
  const T* dy_b;
  const T* peak;
  NormVectors norm;
  float mean[V] = {};
  Affine<V> affine = {};

  __device__ void begin(unsigned group) {
    load_channels(norm.mean, group, mean);
    affine.load(norm, group);
  }
  __device__ Loaded load(std::size_t i) const {
    Loaded in;
    in.a = Pack<T>::load(dy_a + i * V);
    if constexpr (kTwo) in.b = Pack<T>::load(dy_b + i * V);
    in.z = Pack<T>::load(peak + i * V);
    return in;
  }
  __device__ void add(std::size_t i, const Loaded& in, float (&sums)[kSums][V]) const {
    Pack<T> dsum;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float z = to_float(in.z.x[v]);
      float d = to_float(in.a.x[v]);
      if constexpr (kTwo) d += to_float(in.b.x[v]);
      dsum.x[v] = from_float<T>(relu_passes(affine.of(z, v)) ? d : 0.0F);
      const float rounded = to_float(dsum.x[v]);
      sums[0][v] += rounded;
      sums[1][v] += rounded * (z - mean[v]);
    }
    dsum.store(dy_a + i * V);
  }
};

/// A thread makes a patch of 2x2 vectors of dz.
template <class T>
struct StemApply {
  static constexpr unsigned kVectors = 1;
  static constexpr int kBlocks = 2;
  static constexpr int V = vector_width<T>;
  using Loaded = PatchGradient<T>;
  const T* dsum;
  const std::uint8_t* argmax;
  const T* z;
  T* dz;
  NormVectors norm;
  Window s;
  NormDerivative<V> derivative = {};

  /// Elements outside are read from the patch's own window and element, and do not count.
  __device__ std::size_t element(const Place4& at, int k) const {
    const int h = 2 * at.h + k / 2;
    const int w = 2 * at.w + k % 2;
    return vector_at(at.n, h < s.height ? h : 2 * at.h, w < s.width ? w : 2 * at.w, at.group,
                     s.groups, s.height, s.width);
  }
  __device__ Loaded load(unsigned i) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    Loaded in;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool inside = at.h + k / 2 < s.pooled_height && at.w + k % 2 < s.pooled_width;
      const unsigned step = static_cast<unsigned>((k / 2 * s.pooled_width + k % 2) * s.groups);
      const std::size_t window = inside ? i + step : i;
      in.load_window(k, dsum + window * V, argmax + window * V, inside);
      in.load_z(k, z + element(at, k) * V);
    }
    return in;
  }
  __device__ void begin(unsigned group) { derivative.load(norm, group); }
  __device__ void store(unsigned i, const Loaded& in) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    Pack<T> out[4];
    in.make(derivative, out);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (2 * at.h + k / 2 < s.height && 2 * at.w + k % 2 < s.width)
        out[k].store(dz + element(at, k) * V);
  }
};

}  // namespace

void stem_pool(const void* z, const float* gamma, void* peak, std::uint8_t* argmax,
               const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    elementwise<T>(StemPool<T>{as<T>(z), gamma, as<T>(peak), argmax, window_of<T>(on.shape)},
                   on.over(pooled(on.shape)));
  });
}

void stem_pool_backward(void* dy_a, const void* dy_b, const void* peak,
                        const NormParameters& parameters, const NormVectors& norm, float* scratch,
                        const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    const auto run = [&]<int kTwo>() {
      reduce<T>(StemSums<T, kTwo != 0>{as<T>(dy_a), as<T>(dy_b), as<T>(peak), norm},
                FinishNormGradient<T>{parameters, norm,
                                      share_of_element(on.shape)},  // of z, not what is pooled
                scratch, on.over(pooled(on.shape)));
    };
    with_constant<0, 1>(dy_b != nullptr ? 1 : 0, run);
  });
}

void stem_pool_apply(const void* dsum, const std::uint8_t* argmax, const void* z,
                     const NormVectors& norm, void* dz, const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    elementwise<T>(
        StemApply<T>{as<T>(dsum), argmax, as<T>(z), as<T>(dz), norm, window_of<T>(on.shape)},
        on.over(pooled(on.shape)));
  });
}

// Kernels that write the network's input: images, and numbers that algorithms are timed on.

namespace {

template <class T>
__global__ void normalise_images_kernel(const std::uint8_t* images, T* x, std::size_t pixels) {
  constexpr int kChannels = kStemChannels;
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

void normalise_images(const std::uint8_t* images, void* x, const Launch& on) {
  const std::size_t pixels = on.shape.count() / static_cast<std::size_t>(on.shape.c);
  const auto blocks = static_cast<unsigned>((pixels + kThreads - 1) / kThreads);
  with_type(on.type, [&]<class T>(T) {
    normalise_images_kernel<<<blocks, kThreads, 0, on.stream>>>(images, as<T>(x), pixels);
  });
  CHECK_LAUNCH();
}

void randomise(void* to, std::size_t count, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    randomise_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                       stream>>>(as<T>(to), count);
  });
  CHECK_LAUNCH();
}

void pause(double us, cudaStream_t stream) {
  pause_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(us * 1e3));
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
