#include <algorithm>

#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {
namespace {

std::string name_of_weights(const Shared& shared, const NormedConv& layer) {
  return shared.context.table.parameters().at(static_cast<std::size_t>(layer.weight)).name;
}

std::string key_of_sums(const Shared& shared, const ConvShape& conv) {
  return "sums of " + shared.key(ConvKind::forward, conv);
}

/// cuDNN's sums come from atomic additions: they differ from run to run. The stem's 7x7 has none.
bool may_take_sums(const Shared& shared, const ConvShape& conv) {
  return !shared.context.tuning.deterministic && conv.kernel <= 3 &&
         shared.may_fuse(Fusion::statistics, key_of_sums(shared, conv));
}

std::string key_of(const FirstPass& pass, const Shared& shared, const ConvShape& conv) {
  return pass.name() + " of " + shared.key(ConvKind::backward_data, conv);
}

}  // namespace

NormedConvolution::NormedConvolution(Shared& shared, const NormedConv& layer, Moments when,
                                     const Slot* x, const Slot* kept_x, const Slot* dnormed,
                                     const Slot* dz, const Slot* dx)
    : shared_(shared),
      layer_(layer),
      x_(x),
      kept_x_(kept_x),
      dnormed_(dnormed),
      dz_(dz),
      dx_(dx),
      forward_(shared, ConvKind::forward, layer),
      backward_weights_(shared, ConvKind::backward_weights, layer) {
  if (may_take_sums(shared, layer.conv))
    forward_with_sums_.emplace(shared, ConvKind::forward_with_sums, layer);
  ++shared.fused.norms;
  if (dx != nullptr) backward_data_.emplace(shared, ConvKind::backward_data, layer);
  FirstPass* const pass = shared.first_pass(dx);
  if (pass != nullptr && layer.conv.kernel == 1 && layer.conv.stride == 1 &&
      pass->can_fuse(layer.conv, dnormed != nullptr)) {
    ++shared.fused.passes;
    if (shared.may_fuse(Fusion::gradients, key_of(*pass, shared, layer.conv))) {
      first_pass_ = pass;
      pass->convolution_runs = true;
    }
  }
  const std::string name = name_of_weights(shared, layer);
  MemoryPlan& plan = shared.context.plan;
  const ActivationShape y = layer.conv.y();
  z_ =
      plan.reserve(name + " output", y.count() * size_of(shared.type), when.forward, when.backward);
  vectors_ = plan.reserve(name + " norm",
                          NormVectors::kCount * static_cast<std::size_t>(y.c) * sizeof(float),
                          when.forward, when.backward);
  const std::size_t of_channels = 2 * static_cast<std::size_t>(y.c);
  sums_ = plan.reserve(name + " sums",
                       std::max(reduction_scratch(y, shared.type, 2), of_channels) * sizeof(float),
                       when.forward, when.forward);
  std::size_t bytes = forward_.workspace_bytes();
  if (forward_with_sums_) bytes = std::max(bytes, forward_with_sums_->workspace_bytes());
  workspace_ = plan.reserve(name + " workspace", bytes, when.forward, when.forward);
  bytes = backward_weights_.workspace_bytes();
  if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
  backward_workspace_ = plan.reserve(name + " workspace", bytes, when.backward, when.backward);
}

void NormedConvolution::bind() {
  const Weights& weights = shared_.context.weights;
  void* w = weights.compute(layer_.weight);
  const ConvBuffers buffers{x_->data(), w, z_->data(), sums_->as<float>()};
  forward_.bind(buffers, workspace_->data());
  bind_sums(buffers);
  if (backward_data_)
    backward_data_->bind({dx_->data(), w, dz_->data()}, backward_workspace_->data());
  backward_weights_.bind({kept_x_->data(), weights.gradient(layer_.weight), dz_->data()},
                         backward_workspace_->data());
  bind_first_pass();
}

/// Takes the sums while z is computed where that is faster than afterwards.
void NormedConvolution::bind_sums(const ConvBuffers& buffers) {
  if (takes_sums_) --shared_.fused.statistics;  // bound again
  takes_sums_ = false;
  if (!forward_with_sums_ || !forward_with_sums_->exists()) return;
  forward_with_sums_->bind(buffers, workspace_->data());
  NormParameters norm = parameters();
  norm.running_mean = vectors().grad_a;  // the true ones stay as they are
  norm.running_variance = vectors().grad_b;
  const auto randomise_inputs = [&] {
    randomise(buffers.x, layer_.conv.x.count(), shared_.type, shared_.stream);
  };
  takes_sums_ = shared_.fuses(
      key_of_sums(shared_, layer_.conv), randomise_inputs, [&] { forward_normed(true, norm); },
      [&] { forward_normed(false, norm); });
  if (takes_sums_) ++shared_.fused.statistics;
}

/// Does the first pass over dx while that is computed where that is faster than afterwards.
void NormedConvolution::bind_first_pass() {
  if (takes_first_pass_) --shared_.fused.gradients;  // bound again
  takes_first_pass_ = false;
  if (first_pass_ == nullptr) return;
  const auto randomise_inputs = [&] {
    shared_.randomise(dnormed_ != nullptr ? *dnormed_ : *dz_, shared_.type);
    randomise_z();
    first_pass_->randomise_inputs();
  };
  takes_first_pass_ = shared_.fuses(
      key_of(*first_pass_, shared_, layer_.conv), randomise_inputs, [&] { backward_fused(); },
      [&] { backward_unfused(); });
  if (takes_first_pass_) ++shared_.fused.gradients;
}

void NormedConvolution::randomise_z() const {
  shared_.randomise(*z_, shared_.type);
  shared_.randomise(*vectors_, DataType::float32);
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

void NormedConvolution::forward_normed(bool takes_sums, const NormParameters& norm) const {
  auto* sums = sums_->as<float>();
  if (takes_sums) {
    forward_with_sums_->run();
    // of a channel: its sums, parameters, running statistics, and what is made of them
    constexpr double kBytes = 12 * sizeof(float);
    shared_.run("statistics_of_sums", weight(), kBytes * layer_.conv.k,
                [&] { statistics_of_sums(sums, shape(), norm, vectors(), shared_.stream); });
  } else {
    forward_.run();
    shared_.run("batch_statistics", weight(), bytes(), [&] {
      batch_statistics(z(), shape(), shared_.type, norm, vectors(), sums, shared_.stream);
    });
  }
}

void NormedConvolution::forward(Pass pass) {
  if (pass == Pass::training)
    return forward_normed(takes_sums_ && !shared_.repeatable, parameters());
  forward_.run();
  running_statistics(layer_.conv.k, parameters(), vectors(), shared_.stream);
}

void NormedConvolution::backward() {
  if (takes_first_pass_)
    backward_fused();
  else
    backward_unfused();
  backward_weights_.run();
}

void NormedConvolution::backward_fused() const {
  GradientProduct product{dz_->data(), shared_.context.weights.compute(layer_.weight),
                          layer_.conv.k};
  NormGradient from{};
  if (dnormed_ != nullptr) {
    from = {dnormed_->data(), z(), vectors()};
    product.from = &from;
  }
  first_pass_->run(product, backward_data_->work());
}

void NormedConvolution::backward_unfused() const {
  if (dnormed_ != nullptr)
    shared_.run("normalise_apply", weight(), 3 * bytes(), [&] {
      normalise_apply(dnormed_->data(), z(), vectors(), dz_->data(), shape(), shared_.type,
                      shared_.stream);
    });
  if (backward_data_) backward_data_->run();
  if (first_pass_ != nullptr) first_pass_->run();
}

}  // namespace shakedown::gpu
