// Skeletons of the channel-wise kernels over NHWC: elementwise passes and two-phase reductions.
#pragma once

#include <algorithm>

#include "common/gpu/check.hpp"
#include "common/gpu/vector.cuh"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {

inline constexpr int kThreads = 256;

template <class T>
using Pack = Vector<T, vector_width<T>>;

/// Calls body(T{}) with the element type that `type` names.
template <class Body>
void with_type(DataType type, Body&& body) {
  switch (type) {
    case DataType::float32: return body(float{});
    case DataType::float16: return body(__half{});
    case DataType::bfloat16: return body(__nv_bfloat16{});
    default: throw InternalError(std::string("kernel on ") + name_of(type));
  }
}

/// Loads the floats of one vector's channels.
template <int V>
__device__ void load_channels(const float* from, int group, float (&to)[V]) {
  static_assert(V % 4 == 0);
#pragma unroll
  for (int v = 0; v < V; v += 4) {
    const auto four = Vector<float, 4>::load(from + group * V + v);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[v + i] = four.x[i];
  }
}

// ---- elementwise ------------------------------------------------------------------------------

inline constexpr int kVectorsPerThread = 4;

/// body(index of the vector, its channel group), for every vector.
template <class Body>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(Body body, std::size_t vectors, int groups) {
  std::size_t i =
      static_cast<std::size_t>(blockIdx.x) * (kThreads * kVectorsPerThread) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k, i += kThreads)
    if (i < vectors) body(i, static_cast<int>(i % static_cast<unsigned>(groups)));
}

template <class T, class Body>
void elementwise(const Body& body, const ActivationShape& shape, cudaStream_t stream) {
  const std::size_t vectors = shape.count() / vector_width<T>;
  constexpr std::size_t tile = kThreads * kVectorsPerThread;
  elementwise_kernel<<<static_cast<unsigned>((vectors + tile - 1) / tile), kThreads, 0, stream>>>(
      body, vectors, shape.c / vector_width<T>);
  CHECK_LAUNCH();
}

// ---- reductions ---------------------------------------------------------------------------------

/// How a reduction over `rows` rows of `groups` vectors is cut: a block takes `lanes` vectors side
/// by side and every so many rows.
struct ReductionShape {
  int lanes;
  unsigned tiles;   // blocks side by side
  unsigned chunks;  // blocks below one another: partial sums a channel

  ReductionShape(std::size_t rows, int groups) : lanes(std::min(groups, 32)) {
    constexpr std::size_t kBlocks = 528;  // four a multiprocessor on the largest chips of today
    const auto rows_at_once = static_cast<std::size_t>(kThreads / lanes);
    tiles = static_cast<unsigned>(groups / lanes);
    const std::size_t useful = (rows + 4 * rows_at_once - 1) / (4 * rows_at_once);
    chunks = static_cast<unsigned>(
        std::max<std::size_t>(1, std::min(useful, std::max<std::size_t>(1, kBlocks / tiles))));
  }
};

/// Body: kSums, begin(group), operator()(vector index, sums). partial: chunks x kSums x channels.
template <class T, class Body>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Body body, std::size_t rows, int groups, int lanes, float* partial) {
  constexpr int V = vector_width<T>;
  constexpr int kValues = Body::kSums * V;
  __shared__ float shared[kThreads * kValues];
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row_in_block = static_cast<int>(threadIdx.x) / lanes;
  const int rows_at_once = kThreads / lanes;
  const int group = static_cast<int>(blockIdx.x) * lanes + lane;
  const std::size_t stride =
      static_cast<std::size_t>(gridDim.y) * static_cast<unsigned>(rows_at_once);

  float sums[Body::kSums][V] = {};
  body.begin(group);
  std::size_t row = static_cast<std::size_t>(blockIdx.y) * static_cast<unsigned>(rows_at_once) +
                    static_cast<unsigned>(row_in_block);
#pragma unroll 4
  for (; row < rows; row += stride)
    body(row * static_cast<unsigned>(groups) + static_cast<unsigned>(group), sums);

#pragma unroll
  for (int s = 0; s < Body::kSums; ++s)
#pragma unroll
    for (int v = 0; v < V; ++v)
      shared[(row_in_block * kValues + s * V + v) * lanes + lane] = sums[s][v];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kValues * lanes; i += kThreads) {
    float total = 0;
    for (int r = 0; r < rows_at_once; ++r) total += shared[r * kValues * lanes + i];
    const int of_lane = i % lanes;
    const int s = i / lanes / V;
    const int v = i / lanes % V;
    const int channel = (static_cast<int>(blockIdx.x) * lanes + of_lane) * V + v;
    partial[(static_cast<std::size_t>(blockIdx.y) * Body::kSums + static_cast<unsigned>(s)) *
                static_cast<unsigned>(groups * V) +
            static_cast<unsigned>(channel)] = total;
  }
}

inline constexpr int kFinishChannels = 32;
inline constexpr int kFinishLanes = 32;

/// Finish: operator()(channel, sums) with the whole sums, for every channel.
template <int kSums, class Finish>
__global__ void __launch_bounds__(kFinishChannels* kFinishLanes)
    finish_kernel(Finish finish, const float* partial, int chunks, int channels) {
  __shared__ double shared[kSums][kFinishLanes][kFinishChannels];
  const int channel =
      static_cast<int>(blockIdx.x) * kFinishChannels + static_cast<int>(threadIdx.x);
  double sums[kSums] = {};
  if (channel < channels)
    for (int chunk = static_cast<int>(threadIdx.y); chunk < chunks; chunk += kFinishLanes)
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] += partial[(chunk * kSums + s) * channels + channel];
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

/// Reduces over N, H and W of `shape`, then finishes every channel.
template <class T, class Body, class Finish>
void reduce(const Body& body, const Finish& finish, const ActivationShape& shape, float* scratch,
            cudaStream_t stream) {
  const std::size_t rows = shape.count() / static_cast<std::size_t>(shape.c);
  const int groups = shape.c / vector_width<T>;
  const ReductionShape cut(rows, groups);
  reduce_kernel<T><<<dim3(cut.tiles, cut.chunks), kThreads, 0, stream>>>(body, rows, groups,
                                                                         cut.lanes, scratch);
  CHECK_LAUNCH();
  finish_kernel<Body::kSums>
      <<<static_cast<unsigned>((shape.c + kFinishChannels - 1) / kFinishChannels),
         dim3(kFinishChannels, kFinishLanes), 0, stream>>>(finish, scratch,
                                                           static_cast<int>(cut.chunks), shape.c);
  CHECK_LAUNCH();
}

// ---- what the norms' backward passes share ------------------------------------------------------

/// From sum of dy and sum of dy * (z - mean): the norm's gradients, and dz's coefficients:
/// dz = gamma invstd (dy - dbeta / M - xhat dgamma / M), xhat = (z - mean) invstd
/// (Ioffe & Szegedy 2015).
template <class T>
__device__ void finish_norm_gradient(int c, double sum, double weighted, double count,
                                     const NormParameters& p, const NormVectors& n) {
  const double invstd = n.invstd[c];
  const double dgamma = weighted * invstd;
  const double a = p.gamma[c] * invstd;
  const double b = -a * invstd * dgamma / count;
  static_cast<T*>(p.dgamma)[c] = from_float<T>(static_cast<float>(dgamma));
  static_cast<T*>(p.dbeta)[c] = from_float<T>(static_cast<float>(sum));
  n.grad_a[c] = static_cast<float>(a);
  n.grad_b[c] = static_cast<float>(b);
  n.grad_c[c] = static_cast<float>(-a * sum / count - b * n.mean[c]);
}

template <class T>
struct FinishNormGradient {
  NormParameters parameters;
  NormVectors vectors;
  double count;

  __device__ void operator()(int c, const double (&sums)[2]) const {
    finish_norm_gradient<T>(c, sums[0], sums[1], count, parameters, vectors);
  }
};

}  // namespace shakedown::gpu
