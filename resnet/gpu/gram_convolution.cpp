#include "resnet/gpu/gram_convolution.hpp"

namespace shakedown::gpu {
namespace {

std::size_t rows_of(const ConvShape& conv) {
  return conv.x.count() / static_cast<std::size_t>(conv.x.c);
}
int parts_of_d(const ConvShape& conv) {
  return gram_parts_of_d(rows_of(conv), conv.x.c, conv.k);
}
int parts_of_gram(const ConvShape& conv) { return gram_parts(rows_of(conv), kWantedPartsOfG); }

}  // namespace

bool GramConvolution::exists(const GpuContext& context, const ConvShape& conv,
                             const FusableReduction* inner) {
  return inner != nullptr && conv.kernel == 1 && conv.stride == 1 && inner->can_use_gram(conv) &&
         inner->can_fuse(conv, true) && parts_of_d(conv) > 0 && parts_of_gram(conv) > 0 &&
         size_of(context.type) == 2;
}

std::string GramConvolution::key(const GpuContext& context, const ConvShape& conv) {
  return "Gram matrix of " + context.tuner.key(ConvKind::backward_data, conv);
}

GramConvolution::Product::Product(const GpuContext& context, const PartedProduct::Shape& s,
                                  Moments when)
    : shape(s),
      product(context.blas, s, context.blas.workspace().bytes()),
      parts(context.plan.reserve("Gram parts",
                                 static_cast<std::size_t>(s.parts) *
                                     static_cast<std::size_t>(s.left) *
                                     static_cast<std::size_t>(s.right) * sizeof(float),
                                 when.backward, when.backward)) {}

GramConvolution::GramConvolution(GpuContext& context, const NormedConv& layer, Moments when,
                                 const Tensors& tensors, FusableReduction& inner)
    : context_(context),
      layer_(layer),
      when_(when),
      tensors_(tensors),
      inner_(inner),
      sum_of_x_(inner.output_sums()),
      d_product_(
          context,
          {rows_of(layer.conv), parts_of_d(layer.conv), layer.conv.k, layer.conv.x.c, context.type},
          when),
      gram_product_(context,
                    {rows_of(layer.conv), parts_of_gram(layer.conv), layer.conv.x.c, layer.conv.x.c,
                     context.type},
                    when),
      sum_(reserve("Gram dbeta", filters())),
      d_(reserve("Gram D", filters() * channels())),
      gram_(reserve("Gram G", channels() * channels())),
      largest_(reserve("Gram largest weights", filters())),
      bias_(reserve("Gram bias", channels())),
      unscale_(reserve("Gram scale", 1)),
      placed_(reserve("Gram weights", (filters() + channels()) * channels())) {}

const Slot* GramConvolution::reserve(const char* name, std::size_t floats) const {
  return context_.plan.reserve(name, floats * sizeof(float), when_.backward, when_.backward);
}

GramMatrices GramConvolution::matrices() const {
  return {layer_.conv.x.c,       layer_.conv.k,         context_.weights.compute(layer_.weight),
          d_->as<float>(),       largest_->as<float>(), bias_->as<float>(),
          unscale_->as<float>(), placed_->data()};
}

void GramConvolution::bind() {
  randomise_inputs();
  context_.randomise(*tensors_.dnormed, context_.type);
  choose(d_product_, *tensors_.dnormed);
  choose(gram_product_, *tensors_.x);
}

void GramConvolution::randomise_inputs() const {
  context_.randomise(*tensors_.x, context_.type);
  context_.randomise(*sum_of_x_, DataType::float32);
}

/// Every algorithm adds up the same parts: the choice changes times, and last bits.
void GramConvolution::choose(Product& product, const Slot& left) const {
  product.algorithm = context_.tuner.fastest(product.product.algorithms(), [&](std::size_t i) {
    product.product.run(i, left.data(), tensors_.x->data(), product.parts->as<float>(),
                        context_.blas.workspace().data(), context_.cuda_stream);
  });
}

void GramConvolution::run(const char* name, const Product& product, const Slot& left) const {
  const double flop =
      2.0 * static_cast<double>(product.shape.rows) * product.shape.left * product.shape.right;
  const double bytes = static_cast<double>(tensors_.x->bytes()) +
                       (&left == tensors_.x ? 0.0 : static_cast<double>(left.bytes()));
  context_.log.run({name, layer_.weight, bytes, flop}, [&] {
    product.product.run(product.algorithm, left.data(), tensors_.x->data(),
                        product.parts->as<float>(), context_.blas.workspace().data(),
                        context_.cuda_stream);
  });
}

void GramConvolution::backward(const NormParameters& parameters, const NormVectors& vectors) const {
  run("gram_d", d_product_, *tensors_.dnormed);
  context_.run(
      "gram_coefficients", layer_.weight, static_cast<double>(d_product_.parts->bytes()), [&] {
        gram_coefficients(d_product_.parts->as<float>(), d_product_.shape.parts, sum(), parameters,
                          vectors, 1.0F / static_cast<float>(d_product_.shape.rows), matrices(),
                          context_.type, context_.cuda_stream);
      });
  inner_.run_gram(matrices(), tensors_.x->data(), tensors_.dnormed->data());
  run_gradient_of_weights(vectors);
}

void GramConvolution::run_gradient_of_weights(const NormVectors& vectors) const {
  run("gram_g", gram_product_, *tensors_.x);
  context_.run("gram_weight_gradient", layer_.weight,
               static_cast<double>(gram_product_.parts->bytes()), [&] {
                 sum_partials(gram_product_.parts->as<float>(), gram_product_.shape.parts,
                              static_cast<int>(channels() * channels()), gram_->as<float>(),
                              context_.cuda_stream);
                 gram_weight_gradient(
                     matrices(), vectors, gram_->as<float>(), sum_of_x_->as<float>(),
                     context_.weights.gradient(layer_.weight), context_.type, context_.cuda_stream);
               });
}

}  // namespace shakedown::gpu
