// A ResNet on one rank: blocks over the backend's units, flat weights, and the plan of its memory.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "resnet/architecture.hpp"
#include "resnet/memory_plan.hpp"
#include "resnet/tensor_file.hpp"
#include "resnet/units.hpp"
#include "resnet/weights.hpp"

namespace shakedown {

struct NetworkSettings {
  Architecture architecture;
  int batch_size = 64;
  int image_size = 224;
  int classes = 1000;
  Precision precision = Precision::fp32;
  float label_smoothing = 0;
  bool recompute = false;  // activations inside blocks are not kept for backward but rebuilt
  Tuning tuning;
};

/// Tensors of a file whose names begin so belong to the training, not to the network: they are
/// passed over in silence where weights are loaded.
inline constexpr const char* kTrainingState = "training_state.";

/// Remarks of loading a file of weights; empty: none.
struct LoadRemarks {
  std::string seeded;   // why the classifier is not the file's
  std::string ignored;  // tensors that the network does not have
};

class Network {
 public:
  /// Builds the units and plans the memory; activations are allocated by allocate(). `loss_scale`
  /// is device memory that outlives the network. All work is enqueued on `stream`.
  Network(const NetworkSettings& settings, Device& device, Stream& stream, const float* loss_scale);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Bytes that allocate() needs.
  std::size_t activation_bytes() const { return plan_.bytes(); }
  void allocate();

  // Block 0 is the stem, the last is the head.
  int blocks() const { return static_cast<int>(blocks_.size()); }
  Range block_range(int block) const { return table_.block_range(block); }
  void forward(int block, Pass pass);
  void backward(int block);

  /// Adds batches that were trained on, here or elsewhere, to the count of state().
  void count_batches(int batches) { batches_tracked_ += batches; }
  std::int64_t batches_tracked() const { return batches_tracked_; }

  /// Enqueues: takes a batch from device memory. images: uint8, N H W 3; labels: int32, N, where -1
  /// is padding that counts for nothing.
  void set_batch(const std::uint8_t* images, const std::int32_t* labels);

  /// The batch that set_batch() made, as the units read it: images in the backend's layout, as
  /// bytes, and labels. The memory is the same for every batch.
  std::array<View, 2> batch() const;

  /// Of the last forward pass, float32, batch x classes, padding included.
  ConstView logits() const;

  /// HeadMetrics, as bytes.
  View metrics() const { return metrics_.view(DataType::uint8); }
  void zero_total_metrics();
  /// Waits for the stream.
  HeadMetrics read_metrics();
  /// The total goes on from here. Waits.
  void set_total_metrics(const Metrics& total);

  // This rank may hold a part of the weights; `master` is all of them, float32 in the flat order.

  /// He initialisation as torchvision's, from a seed.
  std::vector<float> seeded(std::uint64_t seed) const;
  void reset_statistics();
  /// Takes weights into `master`, and running statistics, by torchvision's names. The classifier is
  /// left as it is where the file has none, or one for another number of classes. Throws UsageError
  /// naming `file` and the tensor that is missing, has another shape or holds integers.
  LoadRemarks take(const std::vector<Tensor>& tensors, const std::string& file,
                   std::vector<float>& master);
  /// Keeps what is held here. Waits.
  void set_weights(const std::vector<float>& master);
  /// Weights and running statistics in torchvision's order, names and layout. Waits.
  std::vector<Tensor> state(const std::vector<float>& master) const;

  // Copies in host memory: of what is in the weights' flat order (they, a momentum) and of running
  // statistics. These functions touch no device: any thread may call them.

  /// One tensor per parameter, named `prefix` and the parameter's name.
  std::vector<Tensor> unpacked(std::span<const float> flat, const std::string& prefix) const;
  /// The opposite. Throws UsageError as take() does.
  std::vector<float> packed(const std::vector<Tensor>& tensors, const std::string& prefix,
                            const std::string& file) const;
  std::vector<Tensor> statistics_tensors(std::span<const float> statistics,
                                         std::int64_t batches_tracked) const;

  /// Gives the weights another layout; their values are lost.
  void set_layout(const WeightsLayout& layout);

  Device& device() const { return device_; }
  Stream& stream() const { return stream_; }
  const NetworkSettings& settings() const { return settings_; }
  const Layers& layers() const { return layers_; }
  const ParameterTable& table() const { return table_; }
  const MemoryPlan& plan() const { return plan_; }
  void set_repeatable(bool repeatable) { units_->set_repeatable(repeatable); }
  /// After allocate().
  Fused fused() const { return units_->fused(); }
  /// Records what batches, forward and backward enqueue, and the steps that a Step runs.
  Recorder& recorder() { return recorder_; }
  /// See UnitFactory.
  Roofs measure_roofs() { return units_->measure_roofs(); }
  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }

 private:
  struct Build;
  ActivationShape image_shape() const;  // as the backend stores it
  std::size_t activation_bytes(const ActivationShape& shape) const {
    return shape.count() * size_of(weights_.type());
  }
  void build_units();
  void bind();
  void check_statistics(const ActivationShape& y) const;
  NormedConv normed(const ConvLayer& layer, const ActivationShape& x) const;

  NetworkSettings settings_;
  Device& device_;
  Stream& stream_;
  const float* loss_scale_;
  Layers layers_;
  ParameterTable table_;
  Weights weights_;
  MemoryPlan plan_;
  Recorder recorder_;
  std::unique_ptr<UnitFactory> units_;
  std::vector<std::vector<std::unique_ptr<NetworkUnit>>> blocks_;
  const Slot* input_ = nullptr;
  const Slot* labels_ = nullptr;
  const Slot* logits_ = nullptr;
  Buffer metrics_;
  Buffer arena_;
  std::int64_t batches_tracked_ = 0;
};

/// Convolutions and classifier of one image; forward, and forward plus backward (the image's own
/// gradient is not computed).
struct FlopCount {
  double forward = 0;
  double training = 0;
};
FlopCount flop_per_image(const Layers& layers, int image_size, int classes);

}  // namespace shakedown
