#include <algorithm>

#include "resnet/gpu/convolution.hpp"

#include "common/ensure.hpp"

namespace shakedown::gpu {
namespace {

std::string name_of_weights(const GpuContext& context, const NormedConv& layer) {
  return context.table.parameters().at(static_cast<std::size_t>(layer.weight)).name;
}

std::string key_of_sums(const GpuContext& context, const ConvShape& conv) {
  return "sums of " + context.tuner.key(ConvKind::forward, conv);
}

/// cuDNN's sums use atomic additions: they differ from run to run. It has none for the stem's 7x7.
bool may_fuse_sums(const GpuContext& context, const ConvShape& conv) {
  return !context.tuning.deterministic && conv.kernel <= 3 &&
         context.tuner.may_fuse(Fusion::statistics, key_of_sums(context, conv));
}

std::string key_of(const FusableReduction& reduction, const GpuContext& context,
                   const ConvShape& conv) {
  return reduction.name() + " of " + context.tuner.key(ConvKind::backward_data, conv);
}

/// A strided 1x1 convolution over the pixels that it reads alone: of stride 1.
NormedConv compacted(NormedConv layer) {
  ConvShape& conv = layer.conv;
  ENSURE(conv.kernel == 1 && conv.pad == 0, "a compact gradient: of a 1x1 convolution");
  conv.x = strided(conv.x, conv.stride);
  conv.stride = 1;
  return layer;
}

}  // namespace

NormedConvolution::NormedConvolution(GpuContext& context, const NormedConv& layer, Moments when,
                                     const Tensors& tensors)
    : context_(context),
      layer_(layer),
      tensors_(tensors),
      forward_(context, ConvKind::forward, layer),
      backward_weights_(context, ConvKind::backward_weights, layer) {
  if (may_fuse_sums(context, layer.conv))
    forward_with_sums_.emplace(context, ConvKind::forward_with_sums, layer);
  ++context.fused.norms;
  if (tensors.dx != nullptr)
    backward_data_.emplace(context, ConvKind::backward_data,
                           tensors.compact_dx ? compacted(layer) : layer);
  FusableReduction* const reduction = context.reduction_over(tensors.dx);
  if (reduction != nullptr && layer.conv.kernel == 1 && layer.conv.stride == 1 &&
      reduction->can_fuse(layer.conv, tensors.dnormed != nullptr)) {
    ++context.fused.reductions;
    if (context.tuner.may_fuse(Fusion::gradients, key_of(*reduction, context, layer.conv))) {
      reduction_ = reduction;
      reduction->convolution_runs = true;
    }
  }
  const std::string name = name_of_weights(context, layer);
  const ActivationShape y = layer.conv.y();
  z_ = context.saved(name + " output", y.count() * size_of(context.type), when);
  vectors_ = context.saved(name + " norm", NormVectors::bytes(y.c), when);
  const std::size_t of_channels = 2 * static_cast<std::size_t>(y.c);
  sums_ = context.scratch(
      name + " sums", std::max(reduction_scratch(y, context.type, 2), of_channels) * sizeof(float),
      when.forward);
  std::size_t bytes = forward_.workspace_bytes();
  if (forward_with_sums_) bytes = std::max(bytes, forward_with_sums_->workspace_bytes());
  workspace_ = context.scratch(name + " workspace", bytes, when.forward);
  bytes = backward_weights_.workspace_bytes();
  if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
  backward_workspace_ = context.scratch(name + " workspace", bytes, when.backward);
}

void NormedConvolution::bind() {
  const Weights& weights = context_.weights;
  void* w = weights.compute(layer_.weight);
  const ConvBuffers buffers{tensors_.x->data(), w, z_->data(), sums_->as<float>()};
  forward_.bind(buffers, workspace_->data());
  bind_sums(buffers);
  if (backward_data_)
    backward_data_->bind({tensors_.dx->data(), w, tensors_.dz->data()},
                         backward_workspace_->data());
  backward_weights_.bind(
      {tensors_.x_in_backward->data(), weights.gradient(layer_.weight), tensors_.dz->data()},
      backward_workspace_->data());
  bind_reduction();
}

/// Fuses the sums into the convolution that computes z where that is faster than a pass over z.
void NormedConvolution::bind_sums(const ConvBuffers& buffers) {
  if (fuses_sums_) --context_.fused.statistics;  // bound again
  fuses_sums_ = false;
  if (!forward_with_sums_ || !forward_with_sums_->exists()) return;
  forward_with_sums_->bind(buffers, workspace_->data());
  NormParameters norm = parameters();
  norm.running_mean = vectors().grad_a;  // the true ones stay as they are
  norm.running_variance = vectors().grad_b;
  const auto randomise_inputs = [&] {
    randomise(buffers.x, layer_.conv.x.count(), context_.type, context_.cuda_stream);
  };
  fuses_sums_ = context_.tuner.fuses(
      key_of_sums(context_, layer_.conv), randomise_inputs, [&] { forward_normed(true, norm); },
      [&] { forward_normed(false, norm); });
  if (fuses_sums_) ++context_.fused.statistics;
}

/// Fuses the reduction over dx into the kernel that computes dx where that is faster.
void NormedConvolution::bind_reduction() {
  if (fuses_reduction_) --context_.fused.gradients;  // bound again
  fuses_reduction_ = false;
  if (reduction_ == nullptr) return;
  const auto randomise_inputs = [&] {
    context_.randomise(tensors_.dnormed != nullptr ? *tensors_.dnormed : *tensors_.dz,
                       context_.type);
    randomise_z();
    reduction_->randomise_inputs();
  };
  fuses_reduction_ = context_.tuner.fuses(
      key_of(*reduction_, context_, layer_.conv), randomise_inputs, [&] { backward_fused(); },
      [&] { backward_unfused(); });
  if (fuses_reduction_) ++context_.fused.gradients;
}

void NormedConvolution::randomise_z() const {
  context_.randomise(*z_, context_.type);
  context_.randomise(*vectors_, DataType::float32);
}

void NormedConvolution::forward_normed(bool fuses_sums, const NormParameters& norm) const {
  auto* sums = sums_->as<float>();
  if (fuses_sums) {
    forward_with_sums_->run();
    // of a channel: its sums, parameters, running statistics, and what is made of them
    constexpr double kBytes = 12 * sizeof(float);
    context_.run("statistics_of_sums", weight(), kBytes * layer_.conv.k,
                 [&] { statistics_of_sums(sums, norm, vectors(), context_.on(shape())); });
  } else {
    forward_.run();
    context_.run("batch_statistics", weight(), bytes(),
                 [&] { batch_statistics(z(), norm, vectors(), sums, context_.on(shape())); });
  }
}

void NormedConvolution::forward(Pass pass) {
  if (pass == Pass::training)
    return forward_normed(fuses_sums_ && !context_.repeatable, parameters());
  forward_.run();
  running_statistics(layer_.conv.k, parameters(), vectors(), context_.cuda_stream);
}

void NormedConvolution::backward() {
  if (fuses_reduction_)
    backward_fused();
  else
    backward_unfused();
  backward_weights_.run();
}

void NormedConvolution::backward_fused() const {
  GradientProduct product{tensors_.dz->data(), context_.weights.compute(layer_.weight),
                          layer_.conv.k};
  NormGradient from{};
  if (tensors_.dnormed != nullptr) {
    from = {tensors_.dnormed->data(), z(), vectors()};
    product.from = &from;
  }
  reduction_->run_fused(product, backward_data_->work());
}

void NormedConvolution::backward_unfused() const {
  if (tensors_.dnormed != nullptr)
    context_.run("normalise_apply", weight(), 3 * bytes(), [&] {
      normalise_apply(tensors_.dnormed->data(), z(), vectors(), /*relu=*/false, tensors_.dz->data(),
                      context_.on(shape()));
    });
  if (backward_data_) backward_data_->run();
  if (reduction_ != nullptr) reduction_->run_unfused();
}

}  // namespace shakedown::gpu
