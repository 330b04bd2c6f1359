// The units a ResNet is made of: what hardware fuses already. Block code is written once over
// them; each backend makes its own (resnet/cpu, resnet/gpu).
//
// A unit is built once from its shapes and then run forward and backward, always on the stream it
// was built for. Outputs are finished tensors. A gradient arrives as one or two addends (the next
// block's main path and its shortcut); its reader adds them. backward() overwrites the
// gradients of the unit's parameters. On the GPU a unit's convolution may run, in its own backward
// pass, the reduction over dy of the unit before it, which then skips it (GpuContext::reductions).
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "resnet/architecture.hpp"
#include "resnet/memory_plan.hpp"
#include "resnet/recorder.hpp"
#include "resnet/weights.hpp"

namespace shakedown {

/// Training normalises with the batch's statistics and updates the running ones; evaluation uses
/// the running ones and keeps nothing for backward.
enum class Pass { training, evaluation };

class NetworkUnit {
 public:
  virtual ~NetworkUnit() = default;
  /// Called when the plan's slots and the weights have memory, and again when it moves.
  virtual void bind() = 0;
  virtual void forward(Pass pass) = 0;
  virtual void backward() = 0;
  /// Recomputes y, if it was not kept, before the backward pass of the unit that reads it.
  virtual void rebuild() {}
};

/// When a unit runs, as moments of the memory plan.
struct Moments {
  int forward = 0;
  int backward = 0;
};

/// dL/dy as the sum of one or two tensors of y's shape. Who reads it may overwrite the first.
struct Addends {
  const Slot* first = nullptr;
  const Slot* second = nullptr;
  int second_stride =
      1;  // of the second, which is zero between: only every stride-th row and column
};

/// Indices of a convolution's and its normalisation's parameters and running statistics.
struct NormedConv {
  ConvShape conv;
  int weight = 0;
  int gamma = 0;
  int beta = 0;
  int statistics = 0;
};

/// y = max_pool(relu(norm(conv(x)))): 7x7, stride 2, then pooled 3x3, stride 2. x is the image.
struct StemSpec {
  Moments when;
  NormedConv layer;
  const Slot* x = nullptr;  // activation of shape layer.conv.x with the backend's stem channels
  const Slot* y = nullptr;
  Addends dy;
};

/// y = relu(norm(conv(x))).
struct ConvNormSpec {
  Moments when;
  NormedConv layer;
  const Slot* x = nullptr;
  const Slot* y = nullptr;
  const Slot* dy = nullptr;  // inside a block: always one tensor
  const Slot* dx = nullptr;
  // Where memory is saved: x and y as they are rebuilt for backward. Null: they were kept.
  const Slot* rebuilt_x = nullptr;
  const Slot* rebuilt_y = nullptr;
  const Slot* x_in_backward() const { return rebuilt_x != nullptr ? rebuilt_x : x; }
};

/// y = relu(norm(conv(x)) + s): s is the block's input, or norm(conv(input)).
struct ConvNormAddSpec {
  Moments when;
  NormedConv layer;
  const Slot* x = nullptr;
  const Slot* shortcut = nullptr;            // the block's input
  std::optional<NormedConv> shortcut_layer;  // absent: the identity
  const Slot* y = nullptr;
  Addends dy;
  const Slot* dx = nullptr;
  const Slot* dshortcut = nullptr;  // of the block's input; by the identity: dy.first
  int dshortcut_stride = 1;         // as Addends::second_stride
  const Slot* rebuilt_x = nullptr;  // as of ConvNormSpec
  const Slot* x_in_backward() const { return rebuilt_x != nullptr ? rebuilt_x : x; }
};

/// The head's counts; sums over the samples with a label (>= 0).
struct Metrics {
  double loss_sum = 0;
  std::int64_t top1 = 0;  // samples whose label has the highest logit
  std::int64_t top5 = 0;
  std::int64_t samples = 0;

  SHAKEDOWN_HOST_DEVICE Metrics& operator+=(const Metrics& other) {
    loss_sum += other.loss_sum;
    top1 += other.top1;
    top5 += other.top5;
    samples += other.samples;
    return *this;
  }
};
/// A sample's loss as a multiple of 2^-24. Sums of these are exact below 2^29: whatever the order
/// of samples, batches and ranks, a total has the same bits.
SHAKEDOWN_HOST_DEVICE inline double summable(double loss) { return rint(loss * 0x1p24) * 0x1p-24; }
struct HeadMetrics {
  Metrics step;   // of the last forward pass
  Metrics total;  // since it was last zeroed
};

/// logits = average_pool(x) w^T + b; loss = mean over the batch of the cross-entropy with smoothed
/// labels (Szegedy et al. 2016: 1 - s on the label, s / classes on all, as PyTorch). The gradient
/// is multiplied by *loss_scale.
struct HeadSpec {
  Moments when;
  ActivationShape x_shape;
  int classes = 0;
  float label_smoothing = 0;
  int weight = 0;
  int bias = 0;
  const Slot* x = nullptr;
  const Slot* logits = nullptr;  // float32, N x classes
  const Slot* labels = nullptr;  // int32, N
  const Slot* dx = nullptr;
  HeadMetrics* metrics = nullptr;     // device memory
  const float* loss_scale = nullptr;  // device memory
};

/// Which passes are fused into convolutions (resnet/gpu/convolution.hpp). automatic: those
/// that are faster fused.
enum class Fusion { automatic, none, statistics, gradients, gram, stem, all };

/// How a backend chooses between ways to compute the same.
struct Tuning {
  bool autotune = true;        // time each convolution's algorithms, else take the first
  bool deterministic = false;  // the first algorithm that repeats bitwise: a rerun gives the same
  Fusion fusion = Fusion::automatic;
  std::string cache;  // file of what was timed before, or empty

  /// Whether this form of fusion is requested, faster or not.
  bool requests(Fusion form) const { return fusion == form || fusion == Fusion::all; }
};

/// Counts of fused passes.
struct Fused {
  int norms = 0;
  int statistics = 0;  // norms whose statistics the convolution before them computes
  int reductions = 0;  // backward reductions that the convolution before them could run
  int gradients = 0;   // of these, those that it runs
  int gram = 0;        // norms that go through the Gram matrix of a convolution's input
};

/// Parameters of a backend's units, the same for one network.
struct UnitContext {
  Device& device;
  Stream& stream;
  Precision precision;
  const ParameterTable& table;
  const Weights& weights;
  MemoryPlan& plan;
  Recorder& log;
  Tuning tuning;

  /// Memory from a unit's forward to its backward pass.
  const Slot* saved(std::string name, std::size_t bytes, Moments when) const {
    return plan.reserve(std::move(name), bytes, when.forward, when.backward);
  }
  const Slot* scratch(std::string name, std::size_t bytes, int moment) const {
    return plan.reserve(std::move(name), bytes, moment, moment);
  }
};

/// Makes units and knows the backend's layouts. Parameters are converted on the host, for files.
class UnitFactory {
 public:
  virtual ~UnitFactory() = default;

  virtual std::unique_ptr<NetworkUnit> stem(const StemSpec& spec) = 0;
  virtual std::unique_ptr<NetworkUnit> conv_norm(const ConvNormSpec& spec) = 0;
  virtual std::unique_ptr<NetworkUnit> conv_norm_add(const ConvNormAddSpec& spec) = 0;
  virtual std::unique_ptr<NetworkUnit> head(const HeadSpec& spec) = 0;

  /// Whether a strided shortcut's gradient may leave out the pixels that the shortcut does not
  /// read, where it is zero.
  virtual bool compacts_gradients() const { return false; }
  /// Whether units can rebuild what is not kept.
  virtual bool rebuilds() const { return false; }
  /// true: from now on the forward pass is bitwise repeatable, at some cost; false: the fastest.
  /// Backward is so only where the plans are (Tuning::deterministic).
  virtual void set_repeatable(bool /*repeatable*/) {}
  /// Counts of the fusions in the units that are bound.
  virtual Fused fused() const { return {}; }
  /// All units are bound.
  virtual void bound() {}

  /// Measures the device's roofs: the rate of copies, and of matrix products in the network's
  /// precision. Allocates memory while it measures; throws UsageError if there is too little. Waits
  /// for the stream.
  virtual Roofs measure_roofs() = 0;

  /// How many channels of a pixel are adjacent: an activation is stored as N, C / lanes, H, W,
  /// lanes.
  virtual int lanes(const ActivationShape& shape) const = 0;
  /// Enqueues: images (device memory, uint8, N H W 3) as (pixel / 255 - mean) / deviation per
  /// channel, into the stem's input of this shape (whose c is stem_channels).
  virtual void normalise_images(const std::uint8_t* images, const ActivationShape& shape,
                                const Slot& x) = 0;

  /// torchvision's layout (count elements) <-> the flat buffers' (stored elements), both float32.
  virtual void pack_parameter(const Parameter& parameter, std::span<const float> canonical,
                              std::span<float> stored) const = 0;
  virtual void unpack_parameter(const Parameter& parameter, std::span<const float> stored,
                                std::span<float> canonical) const = 0;
};

/// Mean and deviation of ImageNet's channels (R, G, B), of pixels in 0..1, as torchvision's
/// recipes.
inline constexpr float kImageMean[3] = {0.485F, 0.456F, 0.406F};
inline constexpr float kImageDeviation[3] = {0.229F, 0.224F, 0.225F};

/// torchvision's batch norm.
inline constexpr float kNormEpsilon = 1e-5F;
inline constexpr float kNormMomentum = 0.1F;  // share of the new batch in the running statistics

namespace cpu {
inline constexpr int kStemChannels = 3;
/// Throws UsageError "built without cpu" where it is not built.
std::unique_ptr<UnitFactory> make_units(const UnitContext& context);
}  // namespace cpu
namespace gpu {
inline constexpr int kStemChannels = 4;  // the last is zero: two pixels are 16 bytes
std::unique_ptr<UnitFactory> make_units(const UnitContext& context);
}  // namespace gpu

/// Channels of the image as the backend stores it.
inline int stem_channels(BackendKind backend) {
  return backend == BackendKind::gpu ? gpu::kStemChannels : cpu::kStemChannels;
}

}  // namespace shakedown
