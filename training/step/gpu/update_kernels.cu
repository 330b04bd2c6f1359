#include "common/ensure.hpp"
#include "training/step/update_kernels.hpp"

#include "common/gpu/elementwise.cuh"
#include "common/gpu/native.hpp"

namespace shakedown::gpu {

using namespace training;

namespace {

/// In the place of the type of the copy of the weights: other ranks have copies, too. Kernels of
/// their own, as they need more registers and parameters.
template <class T>
struct Pushed {};
template <class Compute>
struct RangeOf {
  using type = LocalRange;
};
template <class T>
struct RangeOf<Pushed<T>> {
  using type = UpdateRange;
};

/// Calls body with typed pointers to the gradients and to the copy of the weights, which is null
/// and of the gradients' type where there is none.
template <class Body>
void dispatch_update(const UpdateRange& range, Body&& body) {
  const ConstView gradients(range.gradient, range.count, range.gradient_type, Place::device);
  const View copy(range.compute, range.count, range.compute_type, Place::device);
  ENSURE(range.copy_count == 0 || range.compute_type == range.gradient_type,
         "peers exchange gradients as they were computed");
  dispatch(gradients, [&]<class Gradient>(const Gradient* gradient) {
    if (range.copy_count > 0) return body(gradient, static_cast<Pushed<Gradient>*>(nullptr));
    if (copy.data == nullptr) return body(gradient, static_cast<Gradient*>(nullptr));
    dispatch(copy, [&](auto* compute) { body(gradient, compute); });
  });
}

/// A group of elements of an update, in registers.
struct Group {
  std::size_t first;
  std::size_t chunk;
  bool decayed;
  float w[kGroup];
  float g[kGroup];

  template <class Gradient>
  __device__ Group(const LocalRange& r, const Gradient* gradient, const StepScalars& scalars,
                   std::size_t at)
      : first(at), chunk(at / kFlatAlignment), decayed(r.decayed == nullptr || r.decayed[chunk]) {
    load_group(r.master, first, r.count, w);
    load_group(gradient, first, r.count, g);
    const float factor = gradient_factor(scalars);
    for (float& element : g) element *= factor;
  }

  template <class Compute>
  __device__ void store(const typename RangeOf<Compute>::type& r) const {
    store_group(r.master, first, r.count, w);
    store_copies(r, static_cast<Compute*>(nullptr));
  }

  template <class T>
  __device__ void store_copies(const LocalRange& r, T*) const {
    if (r.compute != nullptr) store_group(static_cast<T*>(r.compute), first, r.count, w);
  }
  template <class T>
  __device__ void store_copies(const UpdateRange& r, Pushed<T>*) const {
    store_copies(r, static_cast<T*>(nullptr));
    for (int i = 0; i < r.copy_count; ++i)
      store_group(static_cast<T*>(r.copies[i]), first, r.count, w);
  }
};

template <class Gradient, class Compute>
__global__ void sgd_kernel(typename RangeOf<Compute>::type r, SgdSettings settings,
                           const StepScalars* scalars) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= r.count || !scalars->finite) return;
  const float rate = scalars->learning_rate;
  Group e(r, static_cast<const Gradient*>(r.gradient), *scalars, first);
  float m[kGroup];
  load_group(r.state_a, first, r.count, m);
  for (int i = 0; i < kGroup; ++i) sgd_update(e.w[i], m[i], e.g[i], e.decayed, settings, rate);
  store_group(r.state_a, first, r.count, m);
  e.store<Compute>(r);
}

template <class Gradient, class Compute>
__global__ void lars_kernel(typename RangeOf<Compute>::type r, SgdSettings settings,
                            const StepScalars* scalars) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= r.count || !scalars->finite) return;
  Group e(r, static_cast<const Gradient*>(r.gradient), *scalars, first);
  float m[kGroup];
  load_group(r.state_a, first, r.count, m);
  const float rate = scalars->learning_rate * r.trust[r.tensors[e.chunk]];
  for (int i = 0; i < kGroup; ++i) lars_update(e.w[i], m[i], e.g[i], e.decayed, settings, rate);
  store_group(r.state_a, first, r.count, m);
  e.store<Compute>(r);
}

template <class Gradient, class Compute>
__global__ void adam_kernel(typename RangeOf<Compute>::type r, AdamSettings settings,
                            const StepScalars* scalars) {
  __shared__ AdamStep step;
  if (threadIdx.x == 0) step = adam_step(settings, *scalars);
  __syncthreads();
  const std::size_t first = global_thread() * kGroup;
  if (first >= r.count || !scalars->finite) return;
  Group e(r, static_cast<const Gradient*>(r.gradient), *scalars, first);
  float m[kGroup];
  float v[kGroup];
  load_group(r.state_a, first, r.count, m);
  load_group(r.state_b, first, r.count, v);
  for (int i = 0; i < kGroup; ++i)
    adam_update(e.w[i], m[i], v[i], e.g[i], e.decayed, settings, step);
  store_group(r.state_a, first, r.count, m);
  store_group(r.state_b, first, r.count, v);
  e.store<Compute>(r);
}

/// The block's sum in thread 0. Blocks are of kThreads; the order is fixed.
__device__ float block_sum(float x) {
  __shared__ float warps[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_down_sync(0xFFFFFFFFU, x, lane);
  __syncthreads();  // an earlier sum has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  if (threadIdx.x == 0)
    for (float warp : warps) sum += warp;
  return sum;
}

/// A block per piece.
template <class Gradient>
__global__ void sum_pieces_kernel(const Gradient* gradient, const float* weights,
                                  const NormPiece* pieces, Squares* partials) {
  const NormPiece piece = pieces[blockIdx.x];
  Squares mine;
  for (std::size_t i = threadIdx.x * kGroup; i < piece.count; i += kThreads * kGroup) {
    float x[kGroup];
    load_group(gradient + piece.begin, i, piece.count, x);
    for (float element : x) mine.gradient += element * element;
    if (weights == nullptr) continue;
    load_group(weights + piece.begin, i, piece.count, x);
    for (float element : x) mine.weight += element * element;
  }
  const Squares sum{block_sum(mine.gradient), block_sum(mine.weight)};
  if (threadIdx.x == 0) partials[piece.slot] = sum;
}

/// A warp per parameter.
__global__ void sum_parameters_kernel(const Squares* partials, const std::uint32_t* first,
                                      Squares* sums) {
  Squares sum;
  for (std::uint32_t i = first[blockIdx.x] + threadIdx.x; i < first[blockIdx.x + 1]; i += 32) {
    sum.gradient += partials[i].gradient;
    sum.weight += partials[i].weight;
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    sum.gradient += __shfl_down_sync(0xFFFFFFFFU, sum.gradient, lane);
    sum.weight += __shfl_down_sync(0xFFFFFFFFU, sum.weight, lane);
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// One block.
__global__ void apply_norms_kernel(const Squares* sums, int parameters, NormSettings settings,
                                   const std::uint8_t* adapted, float* trust,
                                   StepScalars* scalars) {
  __shared__ float factor;
  float mine = 0;
  for (int p = static_cast<int>(threadIdx.x); p < parameters; p += kThreads)
    mine += sums[p].gradient;
  const float all = block_sum(mine);
  if (threadIdx.x == 0) {
    take_norm(*scalars, all, settings.clip);
    factor = gradient_factor(*scalars);
  }
  __syncthreads();
  for (int p = static_cast<int>(threadIdx.x); p < parameters; p += kThreads)
    trust[p] = adapted[p] ? trust_ratio(sums[p], factor, settings) : 1.0F;
}

__global__ void average_kernel(float* average, const float* x, EmaSettings settings,
                               const StepScalars* scalars, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  const float share = ema_share(settings, *scalars);
  if (first >= count || share == 0) return;
  float mean[kGroup];
  float now[kGroup];
  load_group(average, first, count, mean);
  load_group(x, first, count, now);
  for (int i = 0; i < kGroup; ++i) mean[i] += share * (now[i] - mean[i]);
  store_group(average, first, count, mean);
}

__global__ void finish_update_kernel(StepScalars* scalars, bool dynamic_scale) {
  finish_step(*scalars, dynamic_scale);
}

__global__ void set_learning_rate_kernel(StepScalars* scalars, float value) {
  scalars->learning_rate = value;
}

class CudaUpdateKernels final : public UpdateKernels {
 public:
  void update(const UpdateRange& range, const UpdateRule& rule, const StepScalars* scalars,
              Stream& stream) const override {
    const unsigned blocks = groups_of(range.count);
    const cudaStream_t on = native(stream);
    dispatch_update(range, [&]<class Gradient, class Compute>(const Gradient*, Compute*) {
      switch (rule.kind) {
        case UpdateRule::sgd:
          sgd_kernel<Gradient, Compute><<<blocks, kThreads, 0, on>>>(range, rule.of_sgd, scalars);
          break;
        case UpdateRule::lars:
          lars_kernel<Gradient, Compute><<<blocks, kThreads, 0, on>>>(range, rule.of_sgd, scalars);
          break;
        case UpdateRule::adam:
          adam_kernel<Gradient, Compute><<<blocks, kThreads, 0, on>>>(range, rule.of_adam, scalars);
          break;
      }
    });
    CHECK_LAUNCH();
  }

  void sum_pieces(ConstView gradient, const float* weights, std::span<const NormPiece> pieces,
                  Squares* partials, Stream& stream) const override {
    if (pieces.empty()) return;
    dispatch(gradient, [&](const auto* g) {
      sum_pieces_kernel<<<static_cast<unsigned>(pieces.size()), kThreads, 0, native(stream)>>>(
          g, weights, pieces.data(), partials);
    });
    CHECK_LAUNCH();
  }

  void sum_parameters(const Squares* partials, std::span<const std::uint32_t> first, Squares* sums,
                      Stream& stream) const override {
    sum_parameters_kernel<<<static_cast<unsigned>(first.size() - 1), 32, 0, native(stream)>>>(
        partials, first.data(), sums);
    CHECK_LAUNCH();
  }

  void apply_norms(std::span<const Squares> sums, const NormSettings& settings,
                   const std::uint8_t* adapted, float* trust, StepScalars* scalars,
                   Stream& stream) const override {
    apply_norms_kernel<<<1, kThreads, 0, native(stream)>>>(
        sums.data(), static_cast<int>(sums.size()), settings, adapted, trust, scalars);
    CHECK_LAUNCH();
  }

  void average(View average, ConstView x, const EmaSettings& settings, const StepScalars* scalars,
               Stream& stream) const override {
    average_kernel<<<groups_of(x.count), kThreads, 0, native(stream)>>>(
        static_cast<float*>(average.data), static_cast<const float*>(x.data), settings, scalars,
        x.count);
    CHECK_LAUNCH();
  }

  void finish_update(StepScalars* scalars, bool dynamic_scale, Stream& stream) const override {
    finish_update_kernel<<<1, 1, 0, native(stream)>>>(scalars, dynamic_scale);
    CHECK_LAUNCH();
  }

  void set_learning_rate(StepScalars* scalars, float value, Stream& stream) const override {
    set_learning_rate_kernel<<<1, 1, 0, native(stream)>>>(scalars, value);
    CHECK_LAUNCH();
  }

 private:
  static unsigned groups_of(std::size_t count) { return blocks_for(count / kGroup + 1); }
};

}  // namespace

std::unique_ptr<UpdateKernels> make_update_kernels() {
  return std::make_unique<CudaUpdateKernels>();
}

}  // namespace shakedown::gpu
