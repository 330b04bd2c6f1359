#include "resnet/gpu/convolution.hpp"

namespace shakedown::gpu {
namespace {

std::size_t rows_of(const ConvShape& conv) {
  return conv.x.count() / static_cast<std::size_t>(conv.x.c);
}
PartedProduct::Shape shape_of_d(const GpuContext& context, const ConvShape& conv) {
  return {rows_of(conv), gram_parts_of_d(rows_of(conv), conv.x.c), conv.k, conv.x.c, context.type};
}
PartedProduct::Shape shape_of_gram(const GpuContext& context, const ConvShape& conv) {
  return {rows_of(conv), gram_parts_of_g(rows_of(conv), conv.x.c), conv.x.c, conv.x.c,
          context.type};
}

bool exists(const GpuContext& context, const PartedProduct::Shape& shape) {
  return shape.parts > 0 &&
         PartedProduct(context.blas, shape, context.blas.workspace().bytes()).algorithms() > 0;
}

}  // namespace

bool GramConvolution::replaces(const GpuContext& context, const ConvShape& conv,
                               const FusableReduction* inner) {
  const bool wanted =
      context.tuning.requests(Fusion::gram) ||
      (context.tuner.chooses() && gram_pays(conv.y().count() * size_of(context.type)));
  return wanted && inner != nullptr && conv.kernel == 1 && conv.stride == 1 &&
         inner->can_use_gram(conv) && has_conv_normalise_add_relu(context.type, conv.x.c, conv.k) &&
         exists(context, shape_of_d(context, conv)) &&
         exists(context, shape_of_gram(context, conv));
}

GramConvolution::Product::Product(const GpuContext& context, const Work& work,
                                  const PartedProduct::Shape& s, const Slot* left,
                                  const Slot* right, int moment)
    : context_(context),
      shape_(s),
      product_(context.blas, s, context.blas.workspace().bytes()),
      work_(work),
      left_(left),
      right_(right),
      parts_(context.scratch("Gram parts",
                             static_cast<std::size_t>(s.parts) * static_cast<std::size_t>(s.left) *
                                 static_cast<std::size_t>(s.right) * sizeof(float),
                             moment)) {
  work_.bytes = static_cast<double>(right->bytes()) +
                (left == right ? 0.0 : static_cast<double>(left->bytes()));
  work_.flop = 2.0 * static_cast<double>(s.rows) * s.left * s.right;
}

/// Every algorithm adds up the same parts: the choice changes times, and last bits. Bound again, it
/// stays.
void GramConvolution::Product::bind(Tuner& tuner) {
  if (algorithm_) return;
  context_.randomise(*left_, context_.type);
  context_.randomise(*right_, context_.type);
  algorithm_ = tuner.fastest(product_.algorithms(), [&](std::size_t algorithm) { run(algorithm); });
}

void GramConvolution::Product::run(std::size_t algorithm) const {
  product_.run(algorithm, left_->data(), right_->data(), parts_->as<float>(),
               context_.blas.workspace().data(), context_.cuda_stream);
}

void GramConvolution::Product::run() const {
  context_.log.run(work_, [&] { run(algorithm_.value()); });
}

GramConvolution::GramConvolution(GpuContext& context, const NormedConv& layer, Moments when,
                                 const Tensors& tensors, FusableReduction& inner)
    : context_(context),
      layer_(layer),
      when_(when),
      tensors_(tensors),
      inner_(inner),
      sum_of_x_(inner.output_sums()),
      gram_product_(context, {"gram_g", layer.weight}, shape_of_gram(context, layer.conv),
                    tensors.x, tensors.x, when.forward),
      d_product_(context, {"gram_d", layer.weight}, shape_of_d(context, layer.conv),
                 tensors.dnormed, tensors.x_in_backward, when.backward),
      vectors_(reserve("Gram norm", NormVectors::kCount * filters(), when.forward)),
      gram_(reserve("Gram G", channels() * channels(), when.forward)),
      sum_(reserve("Gram dbeta", filters(), when.backward)),
      d_(reserve("Gram D", filters() * channels(), when.backward)),
      largest_(reserve("Gram largest weights", filters(), when.backward)),
      bias_(reserve("Gram bias", channels(), when.backward)),
      unscale_(reserve("Gram scale", 1, when.backward)),
      placed_(reserve("Gram weights",
                      (channels() + (gram_in_two(layer.conv.x.c) ? 0 : filters())) * channels(),
                      when.backward, context.type)),
      scaled_(nullptr),
      workspace_(nullptr) {
  if (gram_in_two(layer.conv.x.c)) {
    scaled_ = reserve("Gram scaled weights", filters() * channels(), when.backward, context.type);
    of_dnormed_.emplace(context, ConvKind::backward_data, layer);
    workspace_ = context.scratch("Gram workspace", of_dnormed_->workspace_bytes(), when.backward);
  }
  inner.convolution_runs = true;
  ++context.fused.norms;
  ++context.fused.gram;
}

/// From moment `first` to the backward pass.
const Slot* GramConvolution::reserve(const char* name, std::size_t count, int first,
                                     DataType type) const {
  return context_.plan.reserve(name, count * size_of(type), first, when_.backward);
}

GramMatrices GramConvolution::matrices() const {
  return {
      layer_.conv.x.c,       layer_.conv.k,         context_.weights.compute(layer_.weight),
      d_->as<float>(),       largest_->as<float>(), bias_->as<float>(),
      unscale_->as<float>(), placed_->data(),       scaled_ != nullptr ? scaled_->data() : nullptr};
}

ForwardProduct GramConvolution::z() const {
  return {tensors_.x->data(), context_.weights.compute(layer_.weight), layer_.conv.x.c};
}

void GramConvolution::bind() {
  gram_product_.bind(context_.tuner);
  d_product_.bind(context_.tuner);
  if (!of_dnormed_) return;
  context_.randomise(*scaled_, context_.type);
  of_dnormed_->bind({tensors_.dx->data(), scaled_->data(), tensors_.dnormed->data()},
                    workspace_->data());
}

void GramConvolution::forward(Pass pass) const {
  const NormParameters parameters = context_.parameters_of(layer_);
  if (pass != Pass::training)
    return running_statistics(layer_.conv.k, parameters, vectors(), context_.cuda_stream);
  gram_product_.run();
  context_.run("gram_statistics", layer_.weight, gram_product_.bytes(), [&] {
    sum_partials(gram_product_.parts(), gram_product_.count(),
                 static_cast<int>(channels() * channels()), gram_->as<float>(),
                 context_.cuda_stream);
    gram_statistics(context_.weights.compute(layer_.weight), layer_.conv.x.c, gram_->as<float>(),
                    sum_of_x_->as<float>(), parameters, vectors(), context_.on(layer_.conv.y()));
  });
}

void GramConvolution::backward() const {
  const float share = 1.0F / static_cast<float>(rows_of(layer_.conv));
  d_product_.run();
  context_.run("gram_coefficients", layer_.weight, d_product_.bytes(), [&] {
    gram_coefficients(d_product_.parts(), d_product_.count(), sum(), context_.parameters_of(layer_),
                      vectors(), share, matrices(), context_.type, context_.cuda_stream);
  });
  if (of_dnormed_) of_dnormed_->run();
  inner_.run_gram(matrices(), tensors_.x_in_backward->data(), tensors_.dnormed->data());
  context_.run("gram_weight_gradient", layer_.weight, static_cast<double>(d_->bytes()), [&] {
    gram_weight_gradient(matrices(), vectors(), gram_->as<float>(), sum_of_x_->as<float>(),
                         context_.weights.gradient(layer_.weight), context_.type,
                         context_.cuda_stream);
  });
}

}  // namespace shakedown::gpu
