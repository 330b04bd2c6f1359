// What the gpu units share: library handles, tuned convolutions, and a convolution with its norm.
#pragma once

#include <cublas_v2.h>
#include <cudnn.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/gpu/native.hpp"
#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "resnet/plan_cache.hpp"
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

 private:
  Buffer workspace_;
};

/// The algorithms that can serve a convolution, and which one does.
struct ConvChoice {
  ConvPlans candidates;
  std::optional<std::size_t> chosen;  // none before they were timed
  std::string key;                    // in the cache
};

/// A unit's first pass over the gradient of its output, as the convolution that computes that
/// gradient sees it: the two may be one kernel.
class FirstPass {
 public:
  virtual ~FirstPass() = default;
  /// In the cache of what was timed.
  virtual std::string name() const = 0;
  /// Whether it can be fused with this convolution's data gradient, and `through_norm`, with the
  /// gradient through the convolution's norm before that.
  virtual bool can_fuse(const ConvShape& conv, bool through_norm) const = 0;
  /// Enqueues: random data into what it reads besides the gradient, to be timed on.
  virtual void randomise_inputs() const = 0;
  /// Enqueues it; the gradient is in its slot.
  virtual void run() = 0;
  /// Enqueues both; the slot gets the gradient as the pass leaves it.
  virtual void run(const GradientProduct& product, const Work& convolution) = 0;

  /// The convolution enqueues it, one way or the other; else the unit does.
  bool convolution_runs = false;
};

struct Shared {
  explicit Shared(const UnitContext& context);

  /// One for all units that convolve alike.
  ConvChoice& choice(ConvKind kind, const ConvShape& conv);
  /// Whether this form of fusion may be used for the work that `key` names: it is asked for, or it
  /// was not found slower, here or by an earlier run.
  bool may_fuse(Fusion form, const std::string& key) const;
  /// Whether it is: asked for, or timed and preferred (resnet/verdict.hpp). `randomise_inputs`
  /// enqueues real data for both to work on.
  bool fuses(const std::string& key, const std::function<void()>& randomise_inputs,
             const std::function<void()>& fused, const std::function<void()>& unfused);
  std::string key(ConvKind kind, const ConvShape& conv) const;

  /// Over the gradient that is to be computed into this slot; null where there is none.
  FirstPass* first_pass(const Slot* gradient) const {
    const auto found = first_passes.find(gradient);
    return found == first_passes.end() ? nullptr : found->second;
  }

  /// Milliseconds that a work takes on the stream: once, or the fastest of three.
  double time_once(const std::function<void()>& body);
  double time(const std::function<void()>& body);
  /// Enqueues: random data of moderate size into a whole slot.
  void randomise(const Slot& slot, DataType slot_type) const {
    gpu::randomise(slot.data(), slot.bytes() / size_of(slot_type), slot_type, stream);
  }

  /// Enqueues `body`, the kernel that moves so many bytes for the layer with these weights.
  template <class Body>
  void run(const char* kernel, int weight, double bytes, Body&& body) const {
    context.log.run({kernel, weight, bytes, 0}, body);
  }
  double bytes_of(const ActivationShape& shape) const {
    return static_cast<double>(shape.count() * size_of(type));
  }

  UnitContext context;
  DataType type;
  cudaStream_t stream;
  DnnHandle dnn;
  BlasHandle blas;
  PlanCache cache;
  Fused fused;
  std::map<const Slot*, FirstPass*> first_passes;  // of units that are made before
  bool repeatable = false;  // for a while: what is not to the last bit is not used

 private:
  std::optional<bool> verdict(const std::string& key) const;
  void keep_verdict(const std::string& key, bool fused);

  using Key = std::tuple<ConvKind, int, int, int, int, int, int, int, int>;
  std::map<Key, ConvChoice> choices_;
  std::unique_ptr<Event> start_;  // of what is timed
  std::unique_ptr<Event> end_;
};

/// One direction of one convolution.
class Convolution {
 public:
  /// `layer` names it in the log.
  Convolution(Shared& shared, ConvKind kind, const NormedConv& layer);

  /// False where cuDNN has no algorithm.
  bool exists() const { return !choice_.candidates.empty(); }
  /// Enough for every candidate.
  std::size_t workspace_bytes() const;
  /// Times the candidates, unless autotune is off or an equal convolution was timed: overwrites
  /// the buffers but the weights, which are those of the first step.
  void bind(const ConvBuffers& buffers, void* workspace);
  void run() const;
  const Work& work() const { return work_; }

 private:
  void tune(const ConvBuffers& buffers, void* workspace);

  Shared& shared_;
  ConvKind kind_;
  ConvShape conv_;
  Work work_;
  ConvChoice& choice_;
  std::optional<BoundPlan> bound_;
};

/// z = conv(x) and the vectors that normalise z; backward from dz, or from the gradient of the
/// normalised z. What is done with z in between is the unit's. Also the first pass over dx, of the
/// unit before, where it can be one with computing dx.
class NormedConvolution {
 public:
  /// Backward reads x from `kept_x` and z's gradient from `dz`, where it makes it of `dnormed`
  /// unless that is null. `dx` may be null: the gradient of x is not needed.
  NormedConvolution(Shared& shared, const NormedConv& layer, Moments when, const Slot* x,
                    const Slot* kept_x, const Slot* dnormed, const Slot* dz, const Slot* dx);

  void bind();
  void forward(Pass pass);
  void backward();

  const void* z() const { return z_->data(); }
  NormVectors vectors() const { return NormVectors::in(vectors_->as<float>(), layer_.conv.k); }
  NormParameters parameters() const;
  ActivationShape shape() const { return layer_.conv.y(); }
  double bytes() const { return shared_.bytes_of(shape()); }
  int weight() const { return layer_.weight; }
  /// Enqueues: random data for z and its vectors, to be timed on.
  void randomise_z() const;

 private:
  void bind_sums(const ConvBuffers& buffers);
  void bind_first_pass();
  void backward_fused() const;
  void backward_unfused() const;
  void forward_normed(bool takes_sums, const NormParameters& norm) const;

  Shared& shared_;
  NormedConv layer_;
  const Slot* x_;
  const Slot* kept_x_;
  const Slot* dnormed_;
  const Slot* dz_;
  const Slot* dx_;
  const Slot* z_;
  const Slot* vectors_;
  const Slot* sums_;
  const Slot* workspace_;
  const Slot* backward_workspace_;
  Convolution forward_;
  std::optional<Convolution> forward_with_sums_;  // where it may serve instead
  std::optional<Convolution> backward_data_;
  Convolution backward_weights_;
  FirstPass* first_pass_ = nullptr;  // that is done here
  bool takes_sums_ = false;
  bool takes_first_pass_ = false;
};

Roofs measure_roofs(Shared& shared);

std::unique_ptr<Unit> make_stem(Shared& shared, const StemSpec& spec);
std::unique_ptr<Unit> make_conv_norm(Shared& shared, const ConvNormSpec& spec);
std::unique_ptr<Unit> make_conv_norm_add(Shared& shared, const ConvNormAddSpec& spec);
std::unique_ptr<Unit> make_head(Shared& shared, const HeadSpec& spec);

}  // namespace shakedown::gpu
