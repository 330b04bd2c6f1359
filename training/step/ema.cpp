#include "training/step/ema.hpp"

#include "common/options.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, EmaOptions& values) {
  options.heading("Optimizer");
  options
      .add("--ema,--model-ema-decay", values.ema,
           "decay of an exponential moving average of the weights and running statistics, which is "
           "also validated, and saved by --save; at most (1 + t) / (10 + t) for the t-th average; "
           "0: off")
      .at_least(0)
      .below(1);
  options
      .add("--ema-every,--model-ema-steps", values.ema_every,
           "updates from one average to the next")
      .at_least(1)
      .only_with({"--ema"});
}

Ema::Ema(const EmaOptions& options, Device& device, Stream& stream, const Weights& weights,
         const UpdateKernels& kernels)
    : settings_{static_cast<float>(options.ema), options.ema_every},
      device_(device),
      stream_(stream),
      weights_(weights),
      kernels_(kernels),
      statistics_(device, weights.statistics().bytes()) {}

void Ema::allocate(const std::vector<Range>& ranges) {
  average_ = FlatBuffer();
  average_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
}

void Ema::reset() {
  for (const PlacedRange& placed : average_.layout()) {
    const View to = average_.at(placed.range);
    device_.copy(to.data, weights_.master(placed.range).data, to.bytes(), stream_);
  }
  device_.copy(statistics_.data(), weights_.statistics().data, statistics_.bytes(), stream_);
}

void Ema::update(const StepScalars* scalars) {
  for (const PlacedRange& placed : average_.layout())
    kernels_.average(average_.at(placed.range), weights_.master(placed.range), settings_, scalars,
                     stream_);
  kernels_.average(statistics(), weights_.statistics(), settings_, scalars, stream_);
}

}  // namespace shakedown::training
