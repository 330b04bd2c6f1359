// Skeletons of the channel-wise kernels over NHWC: elementwise passes and two-phase reductions.
// Both move 16 bytes an access and have several loads in flight a thread before the first is used;
// what belongs to a thread's channels is loaded once, as a thread stays with them. The number of
// vectors per pixel must be a power of two (every ResNet's is).
#pragma once

#include <algorithm>
#include <limits>

#include "common/ensure.hpp"
#include "common/gpu/native.hpp"
#include "common/gpu/vector.cuh"
#include "resnet/architecture.hpp"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {

inline constexpr int kThreads = 256;

template <class T>
using Pack = Vector<T, vector_width<T>>;

/// Elements of a channel.
inline double count_of(const ActivationShape& shape) {
  return static_cast<double>(shape.count() / static_cast<std::size_t>(shape.c));
}
inline float share_of_element(const ActivationShape& shape) {
  return static_cast<float>(1 / count_of(shape));
}

/// An attribute of the current device.
inline int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}
inline unsigned multiprocessors() {
  return static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount));
}

/// Calls body(T{}) with the element type that `type` names.
template <class Body>
auto with_type(DataType type, Body&& body) {
  switch (type) {
    case DataType::float32: return body(float{});
    case DataType::float16: return body(__half{});
    case DataType::bfloat16: return body(__nv_bfloat16{});
    default: ENSURE(false, std::string("kernel on ") + name_of(type));
  }
}

/// Calls body.operator()<c>() with the constant c, one of these, that `value` is.
template <int first, int... others, class Body>
auto with_constant(int value, Body&& body) {
  if constexpr (sizeof...(others) > 0)
    if (value != first) return with_constant<others...>(value, body);
  ENSURE(value == first, "a kernel for this number of channels or tensors");
  return body.template operator()<first>();
}

/// The elements at `data`.
template <class T>
__host__ __device__ const T* as(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
__host__ __device__ T* as(void* data) {
  return static_cast<T*>(data);
}

/// Loads the floats of one vector's channels.
template <int V>
__device__ void load_channels(const float* from, unsigned group, float (&to)[V]) {
  static_assert(V % 4 == 0);
#pragma unroll
  for (int v = 0; v < V; v += 4) {
    const auto four = Vector<float, 4>::load(from + group * V + v);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[v + i] = four.x[i];
  }
}

/// What a norm makes of a vector's channels.
template <int V>
struct Affine {
  float scale[V] = {};
  float shift[V] = {};

  __device__ void load(const NormVectors& norm, unsigned group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
  }
  __device__ float of(float z, int v) const { return z * scale[v] + shift[v]; }
};

/// The same, and the shortcut added that ends a block, normalised with kNormShortcut.
template <int V, bool kNormShortcut>
struct AffineWithShortcut : Affine<V> {
  float shortcut_scale[V] = {};

  __device__ void load(const NormVectors& norm, const NormVectors& shortcut, unsigned group) {
    Affine<V>::load(norm, group);
    if constexpr (kNormShortcut) {
      float shortcut_shift[V];
      load_channels(shortcut.scale, group, shortcut_scale);
      load_channels(shortcut.shift, group, shortcut_shift);
#pragma unroll
      for (int v = 0; v < V; ++v) this->shift[v] += shortcut_shift[v];
    }
  }
  __device__ float of(float z, float s, int v) const {
    return Affine<V>::of(z, v) + (kNormShortcut ? s * shortcut_scale[v] : s);
  }
};

/// A norm's gradient by its input: a dy + b z + c, by channel.
template <int V>
struct NormDerivative {
  float a[V] = {};
  float b[V] = {};
  float c[V] = {};

  __device__ void load(const NormVectors& norm, unsigned group) {
    load_channels(norm.grad_a, group, a);
    load_channels(norm.grad_b, group, b);
    load_channels(norm.grad_c, group, c);
  }
  __device__ float of(float dy, float z, int v) const { return a[v] * dy + b[v] * z + c[v]; }
};

/// The vectors of a tensor of which only the even rows and columns are stored: zero between.
template <class T>
struct EvenVectors {
  const T* data;
  EvenPixels pixels;

  __device__ Pack<T> load(unsigned pixel, unsigned groups, unsigned group) const {
    const unsigned even = pixels.of(pixel);
    Pack<T> loaded{};
    if (even != EvenPixels::kNone)
      loaded = Pack<T>::load(data + (std::size_t{even} * groups + group) * vector_width<T>);
    return loaded;
  }
};

// As PyTorch's: a NaN stays, and passes its gradient.
__device__ inline bool relu_passes(float x) { return !(x <= 0); }
__device__ inline float relu(float x) { return x <= 0 ? 0.0F : x; }

// ---- elementwise ------------------------------------------------------------------------------

/// A tensor's vectors. They have 32-bit numbers: activations have far fewer than 2^32.
struct Extent {
  unsigned vectors;
  unsigned groups;  // vectors per pixel

  template <class T>
  static Extent of(const ActivationShape& shape) {
    const auto groups = static_cast<unsigned>(shape.c / vector_width<T>);
    const std::size_t vectors = shape.count() / vector_width<T>;
    ENSURE((groups & (groups - 1)) == 0, "channels of a kernel: a power of two of vectors");
    ENSURE(vectors <= std::numeric_limits<unsigned>::max(), "vectors of a kernel: 32-bit numbers");
    return {static_cast<unsigned>(vectors), groups};
  }
};

/// A pass over more than two thirds of the L2 cache runs backwards: it usually follows a pass that
/// ran forwards, whose end is still in the cache. (Smaller tensors are slower with it: measured on
/// H200.)
inline bool runs_backwards(std::size_t bytes) {
  return bytes > static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize)) / 3 * 2;
}

/// A thread takes Body::kVectors vectors of the same channels, `stride` apart, and Body::kBlocks
/// blocks fit on a multiprocessor. Body: Loaded load(i); begin(group), which loads what belongs to
/// the channels; store(i, loaded).
template <class Body>
__global__ void __launch_bounds__(kThreads, Body::kBlocks)
    elementwise_kernel(Body body, Extent extent, unsigned stride, bool backwards) {
  const unsigned block = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const unsigned across = stride / kThreads;  // blocks that cover a stride
  const unsigned i =
      block / across * (stride * Body::kVectors) + block % across * kThreads + threadIdx.x;
  typename Body::Loaded loaded[Body::kVectors];
#pragma unroll
  for (unsigned k = 0; k < Body::kVectors; ++k)
    if (i + k * stride < extent.vectors) loaded[k] = body.load(i + k * stride);
  body.begin(i & (extent.groups - 1));
#pragma unroll
  for (unsigned k = 0; k < Body::kVectors; ++k)
    if (i + k * stride < extent.vectors) body.store(i + k * stride, loaded[k]);
}

template <class T, class Body>
void elementwise(const Body& body, const Launch& on) {
  const auto extent = Extent::of<T>(on.shape);
  const unsigned stride = std::max<unsigned>(extent.groups, kThreads);
  const unsigned tile = stride * Body::kVectors;
  const unsigned blocks = (extent.vectors + tile - 1) / tile * (stride / kThreads);
  const bool backwards = runs_backwards(on.shape.count() * sizeof(T));
  elementwise_kernel<<<blocks, kThreads, 0, on.stream>>>(body, extent, stride, backwards);
  CHECK_LAUNCH();
}

// ---- reductions ---------------------------------------------------------------------------------

inline constexpr unsigned kReducingBlocks = 3;  // resident per SM (measured on H200)

/// How a reduction over `rows` rows of `groups` vectors is cut: a block takes `lanes` vectors side
/// by side of every (kThreads / lanes * chunks)-th row.
struct ReductionShape {
  unsigned lanes;
  unsigned tiles;   // blocks side by side
  unsigned chunks;  // blocks below one another: partial sums per channel

  ReductionShape(std::size_t rows, unsigned groups) : lanes(std::min(groups, 32U)) {
    const unsigned blocks = kReducingBlocks * multiprocessors();
    const unsigned rows_at_once = kThreads / lanes;
    tiles = groups / lanes;
    const std::size_t useful = (rows + 4 * rows_at_once - 1) / (4 * rows_at_once);
    chunks = std::max(1U, static_cast<unsigned>(std::min<std::size_t>(useful, blocks / tiles)));
  }
};

/// Body: kSums, kRows in flight; begin(group); Loaded load(i); add(i, loaded, sums).
/// partial: chunks x kSums x channels.
template <class T, class Body>
__global__ void __launch_bounds__(kThreads, kReducingBlocks)
    reduce_kernel(Body body, unsigned rows, unsigned groups, unsigned lanes, float* partial) {
  constexpr int V = vector_width<T>;
  constexpr int kValues = Body::kSums * V;
  __shared__ float shared[kThreads * kValues];
  const unsigned lane = threadIdx.x % lanes;
  const unsigned row_in_block = threadIdx.x / lanes;
  const unsigned rows_at_once = kThreads / lanes;
  const unsigned group = blockIdx.x * lanes + lane;
  const unsigned stride = gridDim.y * rows_at_once;

  float sums[Body::kSums][V] = {};
  body.begin(group);
  unsigned row = blockIdx.y * rows_at_once + row_in_block;
  for (; row + (Body::kRows - 1) * stride < rows; row += Body::kRows * stride) {
    typename Body::Loaded loaded[Body::kRows];
#pragma unroll
    for (unsigned k = 0; k < Body::kRows; ++k)
      loaded[k] = body.load((row + k * stride) * groups + group);
#pragma unroll
    for (unsigned k = 0; k < Body::kRows; ++k)
      body.add((row + k * stride) * groups + group, loaded[k], sums);
  }
  for (; row < rows; row += stride) {
    const unsigned i = row * groups + group;
    body.add(i, body.load(i), sums);
  }

#pragma unroll
  for (int s = 0; s < Body::kSums; ++s)
#pragma unroll
    for (int v = 0; v < V; ++v)
      shared[(row_in_block * kValues + static_cast<unsigned>(s * V + v)) * lanes + lane] =
          sums[s][v];
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kValues * lanes; i += kThreads) {
    float total = 0;
    for (unsigned r = 0; r < rows_at_once; ++r) total += shared[r * kValues * lanes + i];
    const unsigned s = i / lanes / V;
    const unsigned channel = (blockIdx.x * lanes + i % lanes) * V + i / lanes % V;
    partial[(blockIdx.y * Body::kSums + s) * (groups * V) + channel] = total;
  }
}

inline constexpr int kFinishChannels = 32;
inline constexpr int kFinishLanes = 32;

/// Finish: operator()(channel, sums) with the whole sums, for every channel.
template <int kSums, class Part, class Finish>
__global__ void __launch_bounds__(kFinishChannels* kFinishLanes)
    finish_kernel(Finish finish, const Part* partial, int chunks, int channels) {
  __shared__ double shared[kSums][kFinishLanes][kFinishChannels];
  const int channel =
      static_cast<int>(blockIdx.x) * kFinishChannels + static_cast<int>(threadIdx.x);
  double sums[kSums] = {};
  if (channel < channels)
#pragma unroll 4  // loads in flight: their latency is what this kernel takes
    for (int chunk = static_cast<int>(threadIdx.y); chunk < chunks; chunk += kFinishLanes)
#pragma unroll
      for (int s = 0; s < kSums; ++s)
        sums[s] += to_float(partial[(chunk * kSums + s) * channels + channel]);
#pragma unroll
  for (int s = 0; s < kSums; ++s) shared[s][threadIdx.y][threadIdx.x] = sums[s];
  for (int half = kFinishLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) < half)
#pragma unroll
      for (int s = 0; s < kSums; ++s)
        shared[s][threadIdx.y][threadIdx.x] +=
            shared[s][static_cast<int>(threadIdx.y) + half][threadIdx.x];
  }
  if (threadIdx.y != 0 || channel >= channels) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s) sums[s] = shared[s][0][threadIdx.x];
  finish(channel, sums);
}

/// Partial sums over N, H and W; returns how many there are of each sum.
template <class T, class Body>
int reduce_to_partials(const Body& body, float* partials, const Launch& on) {
  const auto extent = Extent::of<T>(on.shape);
  const unsigned rows = extent.vectors / extent.groups;
  const ReductionShape cut(rows, extent.groups);
  reduce_kernel<T><<<dim3(cut.tiles, cut.chunks), kThreads, 0, on.stream>>>(
      body, rows, extent.groups, cut.lanes, partials);
  CHECK_LAUNCH();
  return static_cast<int>(cut.chunks);
}

/// Adds up every channel's partial sums and finishes it.
template <int kSums, class Part, class Finish>
void finish_partials(const Finish& finish, const Part* partials, int count, int channels,
                     cudaStream_t stream) {
  finish_kernel<kSums>
      <<<static_cast<unsigned>((channels + kFinishChannels - 1) / kFinishChannels),
         dim3(kFinishChannels, kFinishLanes), 0, stream>>>(finish, partials, count, channels);
  CHECK_LAUNCH();
}

/// Both: reduces over N, H and W, then finishes every channel.
template <class T, class Body, class Finish>
void reduce(const Body& body, const Finish& finish, float* scratch, const Launch& on) {
  const int partials = reduce_to_partials<T>(body, scratch, on);
  finish_partials<Body::kSums>(finish, scratch, partials, on.shape.c, on.stream);
}

// ---- what a norm's statistics make: its vectors and the running statistics, channel by channel
// ---

/// In float32: a chain of double's divisions would take longer than all else that a kernel of a few
/// channels does.
__device__ inline void set_scale_shift(int c, float mean, float variance, const NormParameters& p,
                                       const NormVectors& n) {
  // All is loaded before the first store: the compiler cannot know that stores change none of it,
  // and would load one after the other.
  const float gamma = p.gamma[c];
  const float beta = p.beta[c];
  const float invstd = rsqrtf(variance + kNormEpsilon);
  const float scale = gamma * invstd;
  n.mean[c] = mean;
  n.invstd[c] = invstd;
  n.scale[c] = scale;
  n.shift[c] = beta - mean * scale;
}

/// The number of elements in a channel's sums.
struct Count {
  double share;    // of one element
  float unbiased;  // variance over the one that divides by the count

  static Count of(const ActivationShape& shape) {
    const double count = count_of(shape);
    return {1 / count, static_cast<float>(count / (count - 1))};
  }
};

/// From the sums of z - origin and of its square.
__device__ inline void set_statistics(int c, float origin, double sum, double square_sum,
                                      const Count& count, const NormParameters& p,
                                      const NormVectors& n) {
  const float running_mean = p.running_mean[c];
  const float running_variance = p.running_variance[c];
  const double offset = sum * count.share;
  const auto mean = static_cast<float>(origin + offset);
  const double difference = square_sum * count.share - offset * offset;
  const auto variance = static_cast<float>(difference < 0 ? 0.0 : difference);  // a NaN stays
  set_scale_shift(c, mean, variance, p, n);
  p.running_mean[c] = running_mean + kNormMomentum * (mean - running_mean);
  p.running_variance[c] =
      running_variance + kNormMomentum * (variance * count.unbiased - running_variance);
}

// ---- what the norms' backward passes share ------------------------------------------------------

/// What a norm's gradient needs of a channel besides sums: to be loaded before these are there.
struct NormOfChannel {
  float mean;
  float invstd;
  float gamma;

  __device__ static NormOfChannel load(int c, const NormParameters& p, const NormVectors& n) {
    return {n.mean[c], n.invstd[c], p.gamma[c]};
  }
};

/// From sum of dy and sum of dy * (z - mean): the norm's gradients, and dz's coefficients:
/// dz = gamma invstd (dy - dbeta / M - xhat dgamma / M), xhat = (z - mean) invstd
/// (Ioffe & Szegedy 2015).
template <class T>
__device__ void finish_norm_gradient(int c, double sum, double weighted, float share,
                                     const NormOfChannel& of, const NormParameters& p,
                                     const NormVectors& n) {
  const auto dbeta = static_cast<float>(sum);
  const float dgamma = static_cast<float>(weighted) * of.invstd;
  const float a = of.gamma * of.invstd;
  const float b = -a * of.invstd * dgamma * share;
  as<T>(p.dgamma)[c] = from_float<T>(dgamma);
  as<T>(p.dbeta)[c] = from_float<T>(dbeta);
  n.grad_a[c] = a;
  n.grad_b[c] = b;
  n.grad_c[c] = -a * dbeta * share - b * of.mean;
}
template <class T>
__device__ void finish_norm_gradient(int c, double sum, double weighted, float share,
                                     const NormParameters& p, const NormVectors& n) {
  finish_norm_gradient<T>(c, sum, weighted, share, NormOfChannel::load(c, p, n), p, n);
}

template <class T>
struct FinishNormGradient {
  NormParameters parameters;
  NormVectors vectors;
  float share;  // of one element of a channel: 1 / M

  __device__ void operator()(int c, const double (&sums)[2]) const {
    finish_norm_gradient<T>(c, sums[0], sums[1], share, parameters, vectors);
  }
};

// Sums over the threads of a warp or of a block, in a fixed order.

inline constexpr unsigned kWarps = kThreads / 32;

/// Adds up a thread's `count` sums over the lanes that differ in the bits from `step` down to
/// `last`, and shares them out: each lane is left with the first of its share, which is the higher
/// half of what it shares with a lane whose bit differs where its own is set.
template <unsigned step, unsigned last, int count>
__device__ void add_across(float* sums) {
  constexpr int kHalf = count / 2;
  const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = upper ? sums[i] : sums[kHalf + i];
    const float kept = upper ? sums[kHalf + i] : sums[i];
    sums[i] = kept + __shfl_xor_sync(~0U, sent, static_cast<int>(step));
  }
  if constexpr (step > last) add_across<step / 2, last, kHalf>(sums);
}
/// The sum over the lanes that differ in the bits from 16 down to `last`: every lane has it.
template <unsigned last, class T>
__device__ T sum_across(T sum) {
#pragma unroll
  for (unsigned step = 16; step >= last; step /= 2)
    sum += __shfl_xor_sync(~0U, sum, static_cast<int>(step));
  return sum;
}

/// The sum over `parts`, `stride` floats apart, of float threadIdx.x below 4 kLanes: in a fixed
/// order, four at a time in float32, these in float64. The whole block calls it.
template <unsigned kLanes>
__device__ double sum_of_parts(const float* from, unsigned parts, std::size_t stride) {
  constexpr unsigned kInFlight = 4;  // loads of a thread: their latency is what this takes
  constexpr unsigned kPlanes = kThreads / kLanes;
  constexpr unsigned kWarpsAcross = kLanes > 32 ? kLanes / 32 : 1;
  __shared__ double shared[kWarps / kWarpsAcross][4 * kLanes];
  const unsigned lane = threadIdx.x % kLanes;
  unsigned part = threadIdx.x / kLanes;
  const float* at = from + part * stride + 4 * lane;
  double sums[4] = {};
  for (; part < parts; part += kInFlight * kPlanes, at += kInFlight * kPlanes * stride) {
    Vector<float, 4> loaded[kInFlight] = {};
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i)
      if (part + i * kPlanes < parts) loaded[i] = Vector<float, 4>::load(at + i * kPlanes * stride);
#pragma unroll
    for (int v = 0; v < 4; ++v)
      sums[v] += static_cast<double>((loaded[0].x[v] + loaded[1].x[v]) +
                                     (loaded[2].x[v] + loaded[3].x[v]));
  }
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    if constexpr (kLanes < 32) sums[v] = sum_across<kLanes>(sums[v]);
    if (threadIdx.x % 32 < kLanes)
      shared[threadIdx.x / 32 / kWarpsAcross][4 * lane + static_cast<unsigned>(v)] = sums[v];
  }
  __syncthreads();
  double total = 0;
  if (threadIdx.x < 4 * kLanes)
#pragma unroll
    for (unsigned i = 0; i < kWarps / kWarpsAcross; ++i) total += shared[i][threadIdx.x];
  return total;
}

}  // namespace shakedown::gpu
