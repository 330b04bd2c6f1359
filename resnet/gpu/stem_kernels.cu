#include "resnet/gpu/reduce.cuh"

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

template <class T>
struct StemPool {
  static constexpr int V = vector_width<T>;
  const T* z;
  T* y;
  std::uint8_t* argmax;
  NormVectors norm;
  Window s;

  __device__ void operator()(std::size_t i, int) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    float a[V];
    float b[V];
    load_channels(norm.scale, at.group, a);
    load_channels(norm.shift, at.group, b);
    float best[V] = {};  // ReLU: nothing below 0 counts
    Bytes<T> where;
#pragma unroll
    for (int v = 0; v < V; ++v) where.x[v] = kNothing;
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int q = 0; q < 3; ++q) {
        const int h = 2 * at.h - 1 + r;
        const int w = 2 * at.w - 1 + q;
        if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
        const auto x =
            Pack<T>::load(z + vector_at(at.n, h, w, at.group, s.groups, s.height, s.width) * V);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float value = to_float(x.x[v]) * a[v] + b[v];
          if (value > best[v]) {
            best[v] = value;
            where.x[v] = static_cast<std::uint8_t>(3 * r + q);
          }
        }
      }
    }
    Pack<T> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.x[v] = from_float<T>(best[v]);
    out.store(y + i * V);
    where.store(argmax + i * V);
  }
};

/// dy_a + dy_b of one pooled vector.
template <class T>
__device__ void load_gradient(const T* a, const T* b, std::size_t i, float (&d)[vector_width<T>]) {
  constexpr int V = vector_width<T>;
  const auto first = Pack<T>::load(a + i * V);
#pragma unroll
  for (int v = 0; v < V; ++v) d[v] = to_float(first.x[v]);
  if (b == nullptr) return;
  const auto second = Pack<T>::load(b + i * V);
#pragma unroll
  for (int v = 0; v < V; ++v) d[v] += to_float(second.x[v]);
}

/// The norm's sums, taken over the pooled gradient: each element of it belongs to one of z.
template <class T>
struct StemSums {
  static constexpr int kSums = 2;
  static constexpr int V = vector_width<T>;
  const T* dy_a;
  const T* dy_b;
  const std::uint8_t* argmax;
  const T* z;
  const float* mean_of_z;
  Window s;
  float mean[V];

  __device__ void begin(int group) { load_channels(mean_of_z, group, mean); }
  __device__ void operator()(std::size_t i, float (&sums)[kSums][V]) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    float d[V];
    load_gradient(dy_a, dy_b, i, d);
    const auto where = Bytes<T>::load(argmax + i * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (where.x[v] == kNothing) continue;
      const int h = 2 * at.h - 1 + where.x[v] / 3;
      const int w = 2 * at.w - 1 + where.x[v] % 3;
      const float value =
          to_float(z[vector_at(at.n, h, w, at.group, s.groups, s.height, s.width) * V +
                     static_cast<unsigned>(v)]);
      sums[0][v] += d[v];
      sums[1][v] += d[v] * (value - mean[v]);
    }
  }
};

/// Gathers, for a vector of z, from the up to four windows that it lies in.
template <class T>
struct StemApply {
  static constexpr int V = vector_width<T>;
  const T* dy_a;
  const T* dy_b;
  const std::uint8_t* argmax;
  const T* z;
  T* dz;
  NormVectors norm;
  Window s;

  __device__ void operator()(std::size_t i, int) const {
    const Place4 at(i, s.groups, s.height, s.width);
    float sum[V] = {};
    // window p covers rows 2p - 1 to 2p + 1
    for (int p = at.h / 2; p <= (at.h + 1) / 2; ++p) {
      for (int q = at.w / 2; q <= (at.w + 1) / 2; ++q) {
        if (p >= s.pooled_height || q >= s.pooled_width) continue;
        const int place = 3 * (at.h - 2 * p + 1) + (at.w - 2 * q + 1);
        const std::size_t j =
            vector_at(at.n, p, q, at.group, s.groups, s.pooled_height, s.pooled_width);
        const auto where = Bytes<T>::load(argmax + j * V);
        float d[V];
        load_gradient(dy_a, dy_b, j, d);
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (where.x[v] == place) sum[v] += d[v];
      }
    }
    float a[V];
    float b[V];
    float c[V];
    load_channels(norm.grad_a, at.group, a);
    load_channels(norm.grad_b, at.group, b);
    load_channels(norm.grad_c, at.group, c);
    auto x = Pack<T>::load(z + i * V);
#pragma unroll
    for (int v = 0; v < V; ++v)
      x.x[v] = from_float<T>(a[v] * sum[v] + b[v] * to_float(x.x[v]) + c[v]);
    x.store(dz + i * V);
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

void stem_pool(const void* z, const NormVectors& norm, void* y, std::uint8_t* argmax,
               const ActivationShape& shape, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(StemPool<T>{static_cast<const T*>(z), static_cast<T*>(y), argmax, norm,
                               window_of<T>(shape)},
                   pooled(shape), stream);
  });
}

void stem_pool_backward(const void* dy_a, const void* dy_b, const std::uint8_t* argmax,
                        const void* z, const ActivationShape& shape, DataType type,
                        const NormParameters& parameters, const NormVectors& norm, float* scratch,
                        cudaStream_t stream) {
  const double count = static_cast<double>(shape.count()) / shape.c;  // of z, not of what is pooled
  with_type(type, [&]<class T>(T) {
    reduce<T>(StemSums<T>{static_cast<const T*>(dy_a),
                          static_cast<const T*>(dy_b),
                          argmax,
                          static_cast<const T*>(z),
                          norm.mean,
                          window_of<T>(shape),
                          {}},
              FinishNormGradient<T>{parameters, norm, count}, pooled(shape), scratch, stream);
  });
}

void stem_pool_apply(const void* dy_a, const void* dy_b, const std::uint8_t* argmax, const void* z,
                     const NormVectors& norm, void* dz, const ActivationShape& shape, DataType type,
                     cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    elementwise<T>(
        StemApply<T>{static_cast<const T*>(dy_a), static_cast<const T*>(dy_b), argmax,
                     static_cast<const T*>(z), static_cast<T*>(dz), norm, window_of<T>(shape)},
        shape, stream);
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
