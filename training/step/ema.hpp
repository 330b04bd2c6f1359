// An exponential moving average of the weights that this rank updates and of its running
// statistics, as torchvision's ExponentialMovingAverage with use_buffers=True. Updated on the
// device.
#pragma once

#include <vector>

#include "common/device.hpp"
#include "resnet/weights.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct EmaOptions {
  double ema = 0;  // decay; 0: no average
  int ema_every = 1;
};
void declare_options(OptionSet& options, EmaOptions& values);

class Ema {
 public:
  /// `weights` and `kernels` must outlive this.
  Ema(const EmaOptions& options, Device& device, Stream& stream, const Weights& weights,
      const UpdateKernels& kernels);

  /// Allocates the average of these ranges, the only ones that are updated here.
  void allocate(const std::vector<Range>& ranges);
  // These enqueue.
  /// The average is the weights and running statistics as they are.
  void reset();
  /// After an update: see UpdateKernels::average.
  void update(const StepScalars* scalars);

  FlatBuffer& weights() { return average_; }
  View statistics() const { return statistics_.view(DataType::float32); }
  /// Bytes that update() reads and writes.
  double bytes_moved() const { return 3.0 * static_cast<double>(bytes()); }
  std::size_t bytes() const { return average_.bytes() + statistics_.bytes(); }

 private:
  EmaSettings settings_;
  Device& device_;
  Stream& stream_;
  const Weights& weights_;
  const UpdateKernels& kernels_;
  FlatBuffer average_;
  Buffer statistics_;
};

}  // namespace shakedown::training
