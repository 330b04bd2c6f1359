#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {
namespace {

/// Where a vector of a tensor with `groups` vectors a pixel lies.
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

constexpr std::uint8_t kNothing = 255;  // argmax where no input is positive

/// One byte an element beside a vector of T.
template <class T>
using Bytes = Vector<std::uint8_t, vector_width<T>>;

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
  static constexpr int V = vector_width<T>;
  struct Loaded {
    Pack<T> x[9];
    unsigned inside;  // a bit a place of the window
  };
  const T* z;
  T* y;
  T* peak;
  std::uint8_t* argmax;
  NormVectors norm;
  Window s;
  float scale[V];
  float shift[V];

  __device__ Loaded load(unsigned i) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    Loaded in;
    in.inside = 0;
#pragma unroll
    for (int p = 0; p < 9; ++p) {
      const int h = 2 * at.h - 1 + p / 3;
      const int w = 2 * at.w - 1 + p % 3;
      if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
      in.inside |= 1U << p;
      in.x[p] = Pack<T>::load(z + vector_at(at.n, h, w, at.group, s.groups, s.height, s.width) * V);
    }
    return in;
  }
  __device__ void begin(unsigned group, bool) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
  }
  __device__ void store(std::size_t i, const Loaded& in) const {
    float best[V] = {};  // ReLU: nothing below 0 counts
    Bytes<T> where;
    Pack<T> z_there;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      where.x[v] = kNothing;
      z_there.x[v] = from_float<T>(0.0F);
    }
#pragma unroll
    for (int p = 0; p < 9; ++p) {
      if (!(in.inside >> p & 1U)) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float value = to_float(in.x[p].x[v]) * scale[v] + shift[v];
        if (value > best[v]) {
          best[v] = value;
          z_there.x[v] = in.x[p].x[v];
          where.x[v] = static_cast<std::uint8_t>(p);
        }
      }
    }
    Pack<T> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.x[v] = from_float<T>(best[v]);
    out.store(y + i * V);
    z_there.store(peak + i * V);
    where.store(argmax + i * V);
  }
};

/// One or two tensors that are read as their sum.
template <class T>
struct Sum {
  const T* a;
  const T* b;  // or null

  struct Loaded {
    Pack<T> a, b;
  };
  __device__ Loaded load(std::size_t i) const {
    constexpr int V = vector_width<T>;
    Loaded in;
    in.a = Pack<T>::load(a + i * V);
    if (b != nullptr) in.b = Pack<T>::load(b + i * V);
    return in;
  }
  __device__ float at(const Loaded& in, int v) const {
    return to_float(in.a.x[v]) + (b != nullptr ? to_float(in.b.x[v]) : 0.0F);
  }
};

/// The norm's sums, taken over the pooled gradient: each element of it belongs to one of z.
template <class T>
struct StemSums {
  static constexpr int kSums = 2;
  static constexpr unsigned kRows = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    typename Sum<T>::Loaded d;
    Pack<T> z;
    Bytes<T> where;
  };
  Sum<T> dy;
  const std::uint8_t* argmax;
  const T* peak;
  const float* mean_of_z;
  float mean[V];

  __device__ void begin(unsigned group) { load_channels(mean_of_z, group, mean); }
  __device__ Loaded load(std::size_t i) const {
    return {dy.load(i), Pack<T>::load(peak + i * V), Bytes<T>::load(argmax + i * V)};
  }
  __device__ void add(std::size_t, const Loaded& in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float d = in.where.x[v] == kNothing ? 0.0F : dy.at(in.d, v);
      sums[0][v] += d;
      sums[1][v] += d * (to_float(in.z.x[v]) - mean[v]);
    }
  }
};

/// A thread makes the 2x2 vectors of z, at (2h, 2w), that lie in the windows (h, w) to
/// (h + 1, w + 1) and in no other: window p covers the rows 2p - 1 to 2p + 1.
template <class T>
struct StemApply {
  static constexpr unsigned kVectors = 1;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    typename Sum<T>::Loaded d[4];
    Bytes<T> where[4];
    Pack<T> z[4];
  };
  Sum<T> dy;
  const std::uint8_t* argmax;
  const T* z;
  T* dz;
  NormVectors norm;
  Window s;
  float a[V];
  float b[V];
  float c[V];

  __device__ bool has_window(const Place4& at, int k) const {
    return at.h + k / 2 < s.pooled_height && at.w + k % 2 < s.pooled_width;
  }
  __device__ bool has_element(const Place4& at, int k) const {
    return 2 * at.h + k / 2 < s.height && 2 * at.w + k % 2 < s.width;
  }
  __device__ std::size_t element(const Place4& at, int k) const {
    return vector_at(at.n, 2 * at.h + k / 2, 2 * at.w + k % 2, at.group, s.groups, s.height,
                     s.width);
  }
  __device__ Loaded load(unsigned i) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    Loaded in;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (has_element(at, k)) in.z[k] = Pack<T>::load(z + element(at, k) * V);
      if (!has_window(at, k)) {
#pragma unroll
        for (int v = 0; v < V; ++v) in.where[k].x[v] = kNothing;
        continue;
      }
      const std::size_t j = vector_at(at.n, at.h + k / 2, at.w + k % 2, at.group, s.groups,
                                      s.pooled_height, s.pooled_width);
      in.d[k] = dy.load(j);
      in.where[k] = Bytes<T>::load(argmax + j * V);
    }
    return in;
  }
  __device__ void begin(unsigned group, bool) {
    load_channels(norm.grad_a, group, a);
    load_channels(norm.grad_b, group, b);
    load_channels(norm.grad_c, group, c);
  }
  __device__ void store(unsigned i, const Loaded& in) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (!has_element(at, k)) continue;
      Pack<T> out;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {  // window w has the element at (row, column) of it, or not
          const int row = 1 + k / 2 - 2 * (w / 2);
          const int column = 1 + k % 2 - 2 * (w % 2);
          if (row < 0 || column < 0) continue;
          if (in.where[w].x[v] == 3 * row + column) sum += dy.at(in.d[w], v);
        }
        out.x[v] = from_float<T>(a[v] * sum + b[v] * to_float(in.z[k].x[v]) + c[v]);
      }
      out.store(dz + element(at, k) * V);
    }
  }
};

template <class T>
__global__ void normalise_images_kernel(const std::uint8_t* images, T* x, std::size_t pixels) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= pixels) return;
  Vector<T, 4> out;
  out.x[3] = from_float<T>(0.0F);
  constexpr float mean[3] = {kImageMean[0], kImageMean[1], kImageMean[2]};
  constexpr float deviation[3] = {kImageDeviation[0], kImageDeviation[1], kImageDeviation[2]};
#pragma unroll
  for (int c = 0; c < 3; ++c)
    out.x[c] = from_float<T>(
        (static_cast<float>(images[3 * i + static_cast<unsigned>(c)]) / 255.0F - mean[c]) /
        deviation[c]);
  out.store(x + 4 * i);
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

}  // namespace

void stem_pool(const void* z, const NormVectors& norm, void* y, void* peak, std::uint8_t* argmax,
               const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(StemPool<T>{static_cast<const T*>(z),
                               static_cast<T*>(y),
                               static_cast<T*>(peak),
                               argmax,
                               norm,
                               window_of<T>(shape),
                               {},
                               {}},
                   pooled(shape), stream);
  });
}

void stem_pool_backward(const void* dy_a, const void* dy_b, const std::uint8_t* argmax,
                        const void* peak, const ActivationShape& shape, DataType type,
                        const NormParameters& parameters, const NormVectors& norm, float* scratch,
                        cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    reduce<T>(StemSums<T>{{static_cast<const T*>(dy_a), static_cast<const T*>(dy_b)},
                          argmax,
                          static_cast<const T*>(peak),
                          norm.mean,
                          {}},
              FinishNormGradient<T>{parameters, norm, count_of(shape)},  // of z, not what is pooled
              pooled(shape), scratch, stream);
  });
}

void stem_pool_apply(const void* dy_a, const void* dy_b, const std::uint8_t* argmax, const void* z,
                     const NormVectors& norm, void* dz, const ActivationShape& shape, DataType type,
                     cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(StemApply<T>{{static_cast<const T*>(dy_a), static_cast<const T*>(dy_b)},
                                argmax,
                                static_cast<const T*>(z),
                                static_cast<T*>(dz),
                                norm,
                                window_of<T>(shape),
                                {},
                                {},
                                {}},
                   pooled(shape), stream);
  });
}

void normalise_images(const std::uint8_t* images, void* x, std::size_t pixels, DataType type,
                      cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    normalise_images_kernel<<<static_cast<unsigned>((pixels + kThreads - 1) / kThreads), kThreads,
                              0, stream>>>(images, static_cast<T*>(x), pixels);
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

}  // namespace shakedown::gpu
