// cuDNN's and cuBLAS's handles on one stream.
#pragma once

#include <cublas_v2.h>
#include <cudnn.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/device.hpp"
#include "common/gpu/native.hpp"
#include "common/types.hpp"
#include "resnet/architecture.hpp"
#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "resnet/memory_plan.hpp"
#include "resnet/plan_cache.hpp"
#include "resnet/recorder.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line);
#define CHECK_CUBLAS(expression) \
  ::shakedown::gpu::check_cublas((expression), #expression, __FILE__, __LINE__)

cudaDataType_t blas_type(DataType type);
/// Sums are in float32.
cublasComputeType_t blas_compute(Precision precision);

struct DnnHandle {
  cudnnHandle_t get = nullptr;
  explicit DnnHandle(cudaStream_t stream);
  ~DnnHandle() { cudnnDestroy(get); }
  DnnHandle(const DnnHandle&) = delete;
  DnnHandle& operator=(const DnnHandle&) = delete;
};

struct BlasHandle {
  cublasHandle_t get = nullptr;
  BlasHandle(Device& device, cudaStream_t stream);
  ~BlasHandle() { cublasDestroy(get); }
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;
  /// Of the work on this stream.
  const Buffer& workspace() const { return workspace_; }

 private:
  Buffer workspace_;
};

// A reduction that the kernel which computes its input can run in its epilogue.

/// A unit's backward reduction over the gradient of its output (ReLU mask, the norm's sums), as the
/// convolution that computes this gradient sees it: its data-gradient kernel can run the reduction
/// in its epilogue (fused), or the reduction runs after it (unfused).
class FusableReduction {
 public:
  virtual ~FusableReduction() = default;
  /// In the cache of timed choices.
  virtual std::string name() const = 0;
  /// Whether this convolution's data-gradient kernel can run it and, with `through_norm`, compute
  /// the gradient through the convolution's norm first.
  virtual bool can_fuse(const ConvShape& conv, bool through_norm) const = 0;
  /// Enqueues random data for every input but the gradient, for timing.
  virtual void randomise_inputs() const = 0;
  /// Enqueues the reduction alone; the gradient is in its slot.
  virtual void run_unfused() = 0;
  /// Enqueues the data gradient and the reduction as one kernel; the slot gets the masked gradient.
  virtual void run_fused(const GradientProduct& product, const Work& convolution) = 0;

  /// Whether run_gram() and output_sums() are there for this convolution.
  virtual bool can_use_gram(const ConvShape& /*conv*/) const { return false; }
  /// Enqueues the gradient through the Gram matrix and the reduction as one kernel (in two
  /// products: what is left after g (a w)). `y` is the convolution's input, `g` the gradient of the
  /// normalised z.
  virtual void run_gram(const GramMatrices& /*matrices*/, const void* /*y*/, const void* /*g*/) {}
  /// Where the unit's forward pass leaves, from now on, each channel's sum of its output in
  /// training. Called before the plan is placed.
  virtual const Slot* output_sums() { return nullptr; }

  /// The convolution enqueues it, fused or unfused; otherwise the unit does.
  bool convolution_runs = false;
};

// Chooses by timing, and keeps the choices in the plan cache: the algorithm of each convolution,
// and whether a fused kernel replaces the separate ones.

/// The algorithms that can compute a convolution, and the one that does.
struct ConvChoice {
  ConvPlans candidates;
  std::optional<std::size_t> chosen;  // none before they were timed
  std::string key;                    // in the cache
};

class Tuner {
 public:
  /// `dnn` outlives it.
  Tuner(const UnitContext& context, const DnnHandle& dnn);

  /// One for all units whose convolutions have the same shape.
  ConvChoice& choice(ConvKind kind, const ConvShape& conv);
  /// Times every candidate bound to `buffers` and chooses the fastest.
  void choose(ConvChoice& choice, const ConvBuffers& buffers, void* workspace);

  /// Whether it chooses between fused and unfused work, rather than the options.
  bool chooses() const;
  /// Whether this form of fusion may be used for the work that `key` names: it is requested, or no
  /// run has found it slower.
  bool may_fuse(Fusion form, const std::string& key) const;
  /// Whether the fused kernel is used: it is requested, or timed and preferred
  /// (resnet/plan_cache.hpp). `randomise_inputs` enqueues the data that both are timed on.
  bool fuses(const std::string& key, const std::function<void()>& randomise_inputs,
             const std::function<void()>& fused, const std::function<void()>& unfused);
  std::string key(ConvKind kind, const ConvShape& conv) const;
  /// The fastest of `count` ways, timed; without timing the first. Not kept in the cache.
  std::size_t fastest(std::size_t count, const std::function<void(std::size_t)>& run);

  /// Writes what was timed to the cache's file.
  void save() { cache_.save(); }

 private:
  bool times() const;
  std::optional<bool> known_to_fuse(const std::string& key) const;
  /// Milliseconds on the stream of one run.
  double time_once(const std::function<void()>& body);
  /// Time of the fastest of three runs, after one that loads the kernels.
  double time(const std::function<void()>& body);

  UnitContext context_;
  const DnnHandle& dnn_;
  PlanCache cache_;
  std::map<std::string, ConvChoice> choices_;  // by key
  std::unique_ptr<Event> start_;
  std::unique_ptr<Event> end_;
};

// The context that the gpu units share, and the functions that make them.

struct GpuContext : UnitContext {
  explicit GpuContext(const UnitContext& context)
      : UnitContext(context),
        type(compute_type(precision)),
        cuda_stream(native(stream)),
        dnn(cuda_stream),
        blas(device, cuda_stream),
        tuner(context, dnn) {}
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  /// Over the gradient that is computed into this slot; null where there is none.
  FusableReduction* reduction_over(const Slot* gradient) const {
    const auto found = reductions.find(gradient);
    return found == reductions.end() ? nullptr : found->second;
  }

  /// Enqueues random data of moderate size into a whole slot.
  void randomise(const Slot& slot, DataType slot_type) const {
    gpu::randomise(slot.data(), slot.bytes() / size_of(slot_type), slot_type, cuda_stream);
  }

  /// Enqueues `body`, a kernel that moves `bytes` for the layer with these weights.
  template <class Body>
  void run(const char* kernel, int weight, double bytes, Body&& body) const {
    log.run({kernel, weight, bytes, 0}, body);
  }
  Launch on(const ActivationShape& shape) const { return {shape, type, cuda_stream}; }
  double bytes_of(const ActivationShape& shape) const {
    return static_cast<double>(shape.count() * size_of(type));
  }
  NormParameters parameters_of(const NormedConv& layer) const {
    return {weights.vector(layer.gamma),
            weights.vector(layer.beta),
            weights.running_mean(layer.statistics),
            weights.running_variance(layer.statistics),
            weights.gradient(layer.gamma),
            weights.gradient(layer.beta)};
  }

  DataType type;
  cudaStream_t cuda_stream;
  DnnHandle dnn;
  BlasHandle blas;
  Tuner tuner;
  Fused fused;
  std::map<const Slot*, FusableReduction*> reductions;  // of the units made so far
  bool repeatable = false;                              // while set, forward adds in a fixed order
};

/// A copy and a product of this precision, on the device alone.
Roofs measure_roofs(Device& device, Stream& stream, const BlasHandle& blas, Precision precision);

std::unique_ptr<NetworkUnit> make_stem(GpuContext& context, const StemSpec& spec);
std::unique_ptr<NetworkUnit> make_conv_norm(GpuContext& context, const ConvNormSpec& spec);
std::unique_ptr<NetworkUnit> make_conv_norm_add(GpuContext& context, const ConvNormAddSpec& spec);
std::unique_ptr<NetworkUnit> make_head(GpuContext& context, const HeadSpec& spec);

}  // namespace shakedown::gpu
