// The stem after its convolution: norm, ReLU and max-pool, forward and backward.
#include "resnet/gpu/passes.cuh"

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

constexpr std::uint8_t kNothing = 255;  // argmax where no input passes the ReLU

/// One byte per element of a vector of T.
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

// ---- forward ------------------------------------------------------------------------------------

// Channels are compared as z, two at a time where a register holds two: the norm is monotonic, so
// the largest value comes from the largest z, or where its scale is negative from the smallest,
// which is the largest with its sign bit turned. A NaN is larger than any number, as in PyTorch;
// its place may be any later one, as all gradients of its channel are NaN.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int kCount = 1;
  static constexpr unsigned kSign = 0x80000000U;
  static constexpr unsigned kLowest = 0xFF800000U;  // -infinity
  __device__ static unsigned larger(unsigned a, unsigned b) {
    const float value = __uint_as_float(a);
    return value > __uint_as_float(b) || isnan(value) ? a : b;
  }
  __device__ static unsigned differ(unsigned a, unsigned b) { return a != b ? 0xFFFFFFFFU : 0U; }
};
template <class Pair>
struct PairLanes {
  static constexpr int kCount = 2;
  static constexpr unsigned kSign = 0x8000U;
  __device__ static unsigned larger(unsigned a, unsigned b) {
    const Pair most = __hmax2_nan(pair_of(a), pair_of(b));
    unsigned bits = 0;
    memcpy(&bits, &most, sizeof(bits));
    return bits;
  }
  /// All bits of a lane where a and b differ, and where one is NaN.
  __device__ static unsigned differ(unsigned a, unsigned b) {
    return __hneu2_mask(pair_of(a), pair_of(b));
  }

 private:
  __device__ static Pair pair_of(unsigned bits) {
    Pair pair;
    memcpy(&pair, &bits, sizeof(pair));
    return pair;
  }
};
template <>
struct Lanes<__half> : PairLanes<__half2> {
  static constexpr unsigned kLowest = 0xFC00FC00U;
};
template <>
struct Lanes<__nv_bfloat16> : PairLanes<__nv_bfloat162> {
  static constexpr unsigned kLowest = 0xFF80FF80U;
};

/// One pooled vector a thread, from its window of nine.
template <class T>
struct StemPool {
  static constexpr unsigned kVectors = 1;
  static constexpr int kBlocks = 4;
  static constexpr int V = vector_width<T>;
  static constexpr int L = Lanes<T>::kCount;
  using Words = Vector<unsigned, 4>;  // the same 16 bytes
  struct Loaded {
    Words x[9];
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
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
  }
  __device__ void store(std::size_t i, const Loaded& in) const {
    union {
      Words words;
      T z[V];
    } best;
    Words where;
    unsigned turned[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      turned[j] = 0;
#pragma unroll
      for (int l = 0; l < L; ++l)
        if (scale[j * L + l] < 0) turned[j] |= Lanes<T>::kSign << (16 * l);
      best.words.x[j] = Lanes<T>::kLowest;
      where.x[j] = 0xFFFFFFFFU;
    }
#pragma unroll
    for (int p = 0; p < 9; ++p) {
      const bool inside = (in.inside >> p & 1U) != 0;
      const unsigned place = static_cast<unsigned>(p) * (L == 2 ? 0x10001U : 1U);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned value = inside ? in.x[p].x[j] ^ turned[j] : Lanes<T>::kLowest;
        const unsigned larger = Lanes<T>::larger(value, best.words.x[j]);
        const unsigned changed = Lanes<T>::differ(larger, best.words.x[j]);
        best.words.x[j] = larger;
        where.x[j] = (changed & place) | (~changed & where.x[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) best.words.x[j] ^= turned[j];
    Pack<T> out;
    Bytes<T> at;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float value = to_float(best.z[v]) * scale[v] + shift[v];
      out.x[v] = from_float<T>(relu(value));
      at.x[v] = relu_passes(value) ? static_cast<std::uint8_t>(where.x[v / L] >> (16 * (v % L)))
                                   : kNothing;
    }
    out.store(y + i * V);
    best.words.store(reinterpret_cast<unsigned*>(peak + i * V));
    at.store(argmax + i * V);
  }
};

// ---- backward -----------------------------------------------------------------------------------

/// One tensor, or two that are read as their sum.
template <class T, bool kTwo>
struct Sum {
  static constexpr int V = vector_width<T>;
  const T* a;
  const T* b;

  struct Loaded {
    Pack<T> a, b;
    __device__ float at(int v) const {
      return kTwo ? to_float(a.x[v]) + to_float(b.x[v]) : to_float(a.x[v]);
    }
  };
  __device__ Loaded load(std::size_t i) const {
    Loaded in;
    in.a = Pack<T>::load(a + i * V);
    if constexpr (kTwo) in.b = Pack<T>::load(b + i * V);
    return in;
  }
};

/// Calls body with the sum of one or two tensors.
template <class T, class Body>
void with_sum(const void* a, const void* b, Body&& body) {
  if (b == nullptr)
    body(Sum<T, false>{static_cast<const T*>(a), nullptr});
  else
    body(Sum<T, true>{static_cast<const T*>(a), static_cast<const T*>(b)});
}

/// The norm's sums, taken over the pooled gradient: each element of it belongs to one of z.
template <class T, class Gradient>
struct StemSums {
  static constexpr int kSums = 2;
  static constexpr unsigned kRows = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    typename Gradient::Loaded d;
    Pack<T> z;
    Bytes<T> where;
  };
  Gradient dy;
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
      const float d = in.where.x[v] == kNothing ? 0.0F : in.d.at(v);
      sums[0][v] += d;
      sums[1][v] += d * (to_float(in.z.x[v]) - mean[v]);
    }
  }
};

/// A thread makes the 2x2 vectors of z at (2h, 2w), which lie in the windows (h, w) to
/// (h + 1, w + 1) and in no other: window p covers the rows 2p - 1 to 2p + 1.
template <class T, class Gradient>
struct StemApply {
  static constexpr unsigned kVectors = 1;
  static constexpr int kBlocks = 2;
  static constexpr int V = vector_width<T>;
  struct Loaded {
    typename Gradient::Loaded d[4];
    Bytes<T> where[4];
    Pack<T> z[4];
  };
  Gradient dy;
  const std::uint8_t* argmax;
  const T* z;
  T* dz;
  NormVectors norm;
  Window s;
  float a[V];
  float b[V];
  float c[V];

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
      in.d[k] = dy.load(window);
      in.where[k] = Bytes<T>::load(argmax + window * V);
      if (!inside) {
#pragma unroll
        for (int v = 0; v < V; ++v) in.where[k].x[v] = kNothing;
      }
      in.z[k] = Pack<T>::load(z + element(at, k) * V);
    }
    return in;
  }
  __device__ void begin(unsigned group) {
    load_channels(norm.grad_a, group, a);
    load_channels(norm.grad_b, group, b);
    load_channels(norm.grad_c, group, c);
  }
  __device__ void store(unsigned i, const Loaded& in) const {
    const Place4 at(i, s.groups, s.pooled_height, s.pooled_width);
    Pack<T> out[4];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float d[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) d[w] = in.d[w].at(v);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {  // the element's place in window w, where it lies in it
          const int row = 1 + k / 2 - 2 * (w / 2);
          const int column = 1 + k % 2 - 2 * (w % 2);
          if (row < 0 || column < 0) continue;
          sum += in.where[w].x[v] == 3 * row + column ? d[w] : 0.0F;
        }
        out[k].x[v] = from_float<T>(a[v] * sum + b[v] * to_float(in.z[k].x[v]) + c[v]);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (2 * at.h + k / 2 < s.height && 2 * at.w + k % 2 < s.width)
        out[k].store(dz + element(at, k) * V);
  }
};

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
    with_sum<T>(dy_a, dy_b, [&]<class Gradient>(const Gradient& dy) {
      reduce<T>(StemSums<T, Gradient>{dy, argmax, static_cast<const T*>(peak), norm.mean, {}},
                FinishNormGradient<T>{parameters, norm,
                                      share_of_element(shape)},  // of z, not what is pooled
                pooled(shape), scratch, stream);
    });
  });
}

void stem_pool_apply(const void* dy_a, const void* dy_b, const std::uint8_t* argmax, const void* z,
                     const NormVectors& norm, void* dz, const ActivationShape& shape, DataType type,
                     cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    with_sum<T>(dy_a, dy_b, [&]<class Gradient>(const Gradient& dy) {
      elementwise<T>(StemApply<T, Gradient>{dy,
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
  });
}

}  // namespace shakedown::gpu
