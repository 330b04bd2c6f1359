#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {
namespace {

template <class T>
__global__ void average_pool_kernel(const T* x, T* features, int groups, int pixels,
                                    std::size_t vectors) {
  constexpr int V = vector_width<T>;
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const std::size_t n = i / static_cast<unsigned>(groups);
  const std::size_t group = i % static_cast<unsigned>(groups);
  float sum[V] = {};
#pragma unroll 4
  for (int p = 0; p < pixels; ++p) {
    const auto loaded =
        Pack<T>::load(x + ((n * static_cast<unsigned>(pixels) + static_cast<unsigned>(p)) *
                               static_cast<unsigned>(groups) +
                           group) *
                              V);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += to_float(loaded.x[v]);
  }
  Pack<T> out;
#pragma unroll
  for (int v = 0; v < V; ++v) out.x[v] = from_float<T>(sum[v] / static_cast<float>(pixels));
  out.store(features + i * V);
}

/// A thread writes one feature vector's gradient to every gridDim.y-th pixel.
template <class T>
__global__ void average_pool_backward_kernel(const T* dfeatures, T* dx, unsigned groups,
                                             unsigned pixels, std::size_t vectors) {
  constexpr int V = vector_width<T>;
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  auto d = Pack<T>::load(dfeatures + i * V);
#pragma unroll
  for (int v = 0; v < V; ++v) d.x[v] = from_float<T>(to_float(d.x[v]) / static_cast<float>(pixels));
  const std::size_t first = i / groups * pixels * groups + i % groups;
  for (unsigned p = blockIdx.y; p < pixels; p += gridDim.y)
    d.store(dx + (first + std::size_t{p} * groups) * V);
}

/// Reduces one value per thread over the block; every thread gets the result. `shared` holds 32.
template <class Value, class Combine>
__device__ Value block_reduce(Value value, Value* shared, Combine combine) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  __syncthreads();  // before shared is used again
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  Value result = shared[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) result = combine(result, shared[w]);
  return result;
}

struct Add {
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return a + b;
  }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// One block a sample.
template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(float* all_logits, const float* bias, const std::int32_t* labels, int classes,
                   float smoothing, const float* loss_scale, T* all_dlogits,
                   SampleResult* samples) {
  __shared__ float floats[32];
  __shared__ int ints[32];
  const std::size_t row = static_cast<std::size_t>(blockIdx.x) * static_cast<unsigned>(classes);
  float* logits = all_logits + row;
  T* dlogits = all_dlogits + row;
  const int first = static_cast<int>(threadIdx.x);
  const int label = labels[blockIdx.x];

  float highest = -INFINITY;
  for (int k = first; k < classes; k += kThreads) {
    logits[k] += bias[k];
    highest = fmaxf(highest, logits[k]);
  }
  highest = block_reduce(highest, floats, Larger{});  // its barrier also shows all logits to all
  if (label < 0) {
    for (int k = first; k < classes; k += kThreads) dlogits[k] = from_float<T>(0.0F);
    if (threadIdx.x == 0) samples[blockIdx.x] = {0.0F, -1};
    return;
  }
  const float own = logits[label];
  float sum = 0;
  float shifted_sum = 0;
  int better = 0;  // not (other <= own), so that a NaN never counts as a hit
  for (int k = first; k < classes; k += kThreads) {
    const float value = logits[k];
    sum += expf(value - highest);
    shifted_sum += value - highest;
    if (k != label && !(k < label ? value < own : value <= own)) ++better;
  }
  sum = block_reduce(sum, floats, Add{});
  shifted_sum = block_reduce(shifted_sum, floats, Add{});
  better = block_reduce(better, ints, Add{});

  const float smooth = smoothing / static_cast<float>(classes);
  const float scale = *loss_scale / static_cast<float>(gridDim.x);
  for (int k = first; k < classes; k += kThreads) {
    const float target = smooth + (k == label ? 1.0F - smoothing : 0.0F);
    dlogits[k] = from_float<T>((expf(logits[k] - highest) / sum - target) * scale);
  }
  if (threadIdx.x == 0)
    samples[blockIdx.x] = {logf(sum) - (1.0F - smoothing) * (own - highest) - smooth * shifted_sum,
                           better};
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const SampleResult* samples, int n, HeadMetrics* metrics) {
  __shared__ double doubles[32];
  __shared__ int ints[32];
  double loss = 0;
  int top1 = 0;
  int top5 = 0;
  int counted = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    if (samples[i].better < 0) continue;
    loss += summable(samples[i].loss);
    top1 += samples[i].better < 1 ? 1 : 0;
    top5 += samples[i].better < 5 ? 1 : 0;
    ++counted;
  }
  loss = block_reduce(loss, doubles, Add{});
  top1 = block_reduce(top1, ints, Add{});
  top5 = block_reduce(top5, ints, Add{});
  counted = block_reduce(counted, ints, Add{});
  if (threadIdx.x != 0) return;
  const Metrics step{loss, top1, top5, counted};
  metrics->step = step;
  metrics->total += step;
}

/// The gradients of a class's logits are the partial sums of its bias's gradient.
template <class T>
struct StoreSum {
  T* to;

  __device__ void operator()(int k, const double (&sums)[1]) const {
    to[k] = from_float<T>(static_cast<float>(sums[0]));
  }
};

}  // namespace

void average_pool(const void* x, void* features, const Launch& on) {
  with_type(on.type, [&]<class T>(T) {
    const int groups = on.shape.c / vector_width<T>;
    const std::size_t vectors =
        static_cast<std::size_t>(on.shape.n) * static_cast<std::size_t>(groups);
    average_pool_kernel<<<static_cast<unsigned>((vectors + kThreads - 1) / kThreads), kThreads, 0,
                          on.stream>>>(as<T>(x), as<T>(features), groups, on.shape.h * on.shape.w,
                                       vectors);
  });
  CHECK_LAUNCH();
}

void average_pool_backward(const void* dfeatures, void* dx, const Launch& on) {
  constexpr unsigned kPixelsAtOnce = 8;  // blocks below one another: enough for a small batch
  with_type(on.type, [&]<class T>(T) {
    const auto groups = static_cast<unsigned>(on.shape.c / vector_width<T>);
    const auto pixels = static_cast<unsigned>(on.shape.h * on.shape.w);
    const std::size_t vectors = static_cast<std::size_t>(on.shape.n) * groups;
    const dim3 blocks(static_cast<unsigned>((vectors + kThreads - 1) / kThreads),
                      std::min(pixels, kPixelsAtOnce));
    average_pool_backward_kernel<<<blocks, kThreads, 0, on.stream>>>(as<T>(dfeatures), as<T>(dx),
                                                                     groups, pixels, vectors);
  });
  CHECK_LAUNCH();
}

void softmax_cross_entropy(float* logits, const float* bias, const std::int32_t* labels, int n,
                           int classes, float smoothing, const float* loss_scale, void* dlogits,
                           DataType type, SampleResult* samples, HeadMetrics* metrics,
                           cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    softmax_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(
        logits, bias, labels, classes, smoothing, loss_scale, as<T>(dlogits), samples);
  });
  CHECK_LAUNCH();
  count_kernel<<<1, kThreads, 0, stream>>>(samples, n, metrics);
  CHECK_LAUNCH();
}

void bias_gradient(const void* dlogits, int n, int classes, void* dbias, DataType type,
                   cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    finish_partials<1>(StoreSum<T>{as<T>(dbias)}, as<T>(dlogits), n, classes, stream);
  });
}

}  // namespace shakedown::gpu
