#include <algorithm>

#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {

NormedConvolution::NormedConvolution(Shared& shared, const NormedConv& layer, Moments when,
                                     const Slot* x, const Slot* dz, const Slot* dx)
    : shared_(shared),
      layer_(layer),
      x_(x),
      dz_(dz),
      dx_(dx),
      forward_(shared, ConvKind::forward, layer.conv),
      backward_weights_(shared, ConvKind::backward_weights, layer.conv) {
  if (dx != nullptr) backward_data_.emplace(shared, ConvKind::backward_data, layer.conv);
  const std::string name =
      shared.context.table.parameters().at(static_cast<std::size_t>(layer.weight)).name;
  MemoryPlan& plan = shared.context.plan;
  const ActivationShape y = layer.conv.y();
  z_ =
      plan.reserve(name + " output", y.count() * size_of(shared.type), when.forward, when.backward);
  vectors_ = plan.reserve(name + " norm",
                          NormVectors::kCount * static_cast<std::size_t>(y.c) * sizeof(float),
                          when.forward, when.backward);
  sums_ = plan.reserve(name + " sums", reduction_scratch(y, shared.type, 2) * sizeof(float),
                       when.forward, when.forward);
  workspace_ =
      plan.reserve(name + " workspace", forward_.workspace_bytes(), when.forward, when.forward);
  std::size_t backward_bytes = backward_weights_.workspace_bytes();
  if (backward_data_) backward_bytes = std::max(backward_bytes, backward_data_->workspace_bytes());
  backward_workspace_ =
      plan.reserve(name + " workspace", backward_bytes, when.backward, when.backward);
}

void NormedConvolution::bind() {
  const Weights& weights = shared_.context.weights;
  void* w = weights.compute(layer_.weight);
  forward_.bind({x_->data(), w, z_->data()}, workspace_->data());
  if (backward_data_)
    backward_data_->bind({dx_->data(), w, dz_->data()}, backward_workspace_->data());
  backward_weights_.bind({x_->data(), weights.gradient(layer_.weight), dz_->data()},
                         backward_workspace_->data());
}

NormParameters NormedConvolution::parameters() const {
  const Weights& weights = shared_.context.weights;
  return {weights.vector(layer_.gamma),
          weights.vector(layer_.beta),
          weights.running_mean(layer_.statistics),
          weights.running_variance(layer_.statistics),
          weights.gradient(layer_.gamma),
          weights.gradient(layer_.beta)};
}

void NormedConvolution::forward(Pass pass) {
  forward_.run();
  if (pass == Pass::training)
    batch_statistics(z(), shape(), shared_.type, parameters(), vectors(), sums_->as<float>(),
                     shared_.stream);
  else
    running_statistics(layer_.conv.k, parameters(), vectors(), shared_.stream);
}

void NormedConvolution::backward() {
  if (backward_data_) backward_data_->run();
  backward_weights_.run();
}

}  // namespace shakedown::gpu
