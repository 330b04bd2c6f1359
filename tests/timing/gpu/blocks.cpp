// The kernels around a block's last 1x1 convolution, and the next block's first, and those of the
// stem, at ResNet-50's shapes: next to cuDNN's convolutions and the passes over tensors that they
// replace.
#include <fmt/format.h>

#include <algorithm>

#include "tests/timing/gpu/lab.hpp"

namespace shakedown::timing {
namespace {

/// y = relu(norm(inner_z)), z = y w', out = relu(norm(z) + shortcut), and back from the first
/// convolution of the next block, whose dz is `narrow`. All of it has been computed once, unfused.
struct Block {
  Lab& lab;
  ActivationShape y_shape, z_shape;
  int next_depth;
  ConvShape conv{y_shape, z_shape.c, 1, 1, 0}, next_conv{z_shape, next_depth, 1, 1, 0};
  std::size_t rows = rows_of(y_shape), size = conv.weight_count();
  void *y = lab.tensor(y_shape), *inner_z = lab.tensor(y_shape), *dy = lab.tensor(y_shape);
  void *z = lab.tensor(z_shape), *out = lab.tensor(z_shape), *second = lab.tensor(z_shape);
  void *g = lab.tensor(z_shape), *dz = lab.tensor(z_shape), *narrow = lab.tensor(next_conv.y());
  void *w = lab.random(size, lab.type), *dw = lab.random(size, lab.type);
  void* next_w = lab.random(next_conv.weight_count(), lab.type);
  std::uint8_t* mask = lab.octets(mask_bytes(z_shape, lab.type));
  NormVectors inner = lab.norm(y_shape.c), norm = lab.norm(z_shape.c);
  NormParameters parameters = lab.parameters(z_shape.c);
  float* partials = lab.floats(reduction_scratch(z_shape, lab.type, 3));
  float* sum_of_y = lab.floats(static_cast<std::size_t>(y_shape.c));
  float* sum_of_g = lab.floats(static_cast<std::size_t>(z_shape.c));
  int parts_of_d = gram_parts_of_d(rows, y_shape.c);
  int parts_of_gram = gram_parts_of_g(rows, y_shape.c);
  float* d_parts = lab.floats(static_cast<std::size_t>(parts_of_d) * size);
  float* gram_parts = lab.floats(static_cast<std::size_t>(parts_of_gram) * size / 4);
  float* gram = lab.floats(size / 4);
  void* scaled = gram_in_two(y_shape.c) ? lab.random(size, lab.type) : nullptr;
  GramMatrices matrices{y_shape.c,
                        z_shape.c,
                        w,
                        lab.floats(size),
                        lab.floats(static_cast<std::size_t>(z_shape.c)),
                        lab.floats(static_cast<std::size_t>(y_shape.c)),
                        lab.floats(1),
                        lab.random(size / 4 * 5, lab.type),
                        scaled};
  int count = 0;  // of partial sums, of the last reduction

  Block(Lab& l, int hw, int channels, int depth)
      : lab(l),
        y_shape{l.batch, channels, hw, hw},
        z_shape{l.batch, 4 * channels, hw, hw},
        next_depth(depth) {
    // so that normalise_relu_apply makes a dy of dy, where y is positive: see within()
    lab.device.zero(inner.grad_b, 2 * static_cast<std::size_t>(channels) * sizeof(float),
                    *lab.stream);
    for (const Call& call :
         {normalise_sums(), convolution(), statistics(), end_with_z(), next_gradient(),
          end_of_gradient(second, 1), finish(), apply(), end_of_gradient(nullptr, 0), finish_sum(),
          d_product(), gram_product(), sum_gram(), coefficients()})
      if (call) call();
  }

  std::string text() const {
    return fmt::format("{} -> {}, next {}", text_of(y_shape), z_shape.c, next_depth);
  }
  double of_y() const { return lab.bytes(y_shape); }
  double of_z() const { return lab.bytes(z_shape); }
  Launch on_y() const { return lab.on(y_shape); }
  Launch on_z() const { return lab.on(z_shape); }

  Call normalise_sums() {
    return [this] {
      const int parts = normalise_relu_sums(inner_z, inner, y, partials, on_y());
      sum_partials(partials, parts, y_shape.c, sum_of_y, lab.cuda_stream);
    };
  }
  Call convolution() { return lab.convolution(ConvKind::forward, conv, {y, w, z}); }
  Call statistics() {
    return [this] { batch_statistics(z, parameters, norm, partials, on_z()); };
  }
  Call statistics_of_gram() {
    if (!has_gram()) return {};
    return [this] { gram_statistics(w, y_shape.c, gram, sum_of_y, parameters, norm, on_z()); };
  }
  BlockEnd end() const { return {norm, second, std::nullopt, out, mask}; }
  Call end_with_z() {
    return [this] { normalise_add_relu(z, end(), on_z()); };
  }
  Call end_without_z(bool wide) {
    if (!(wide ? has_wide_conv_normalise_add_relu : has_conv_normalise_add_relu)(
            lab.type, y_shape.c, z_shape.c))
      return {};
    return [this, run = wide ? wide_conv_normalise_add_relu : conv_normalise_add_relu] {
      run({y, w, y_shape.c}, end(), on_z());
    };
  }

  Call next_gradient() {
    return lab.convolution(ConvKind::backward_data, next_conv, {g, next_w, narrow});
  }
  Call end_of_gradient(const void* addend, int tensors) {
    return [this, addend, tensors] {
      count = add_relu_backward(g, {addend, 1}, mask, centred(tensors), partials, on_z());
    };
  }
  Call end_of_gradient_fused(int tensors, bool wide) {
    if (!(wide ? has_wide_conv_add_relu_backward : has_conv_add_relu_backward)(lab.type, next_depth,
                                                                               z_shape.c))
      return {};
    return [this, tensors, wide] {
      const GradientProduct product{narrow, next_w, next_depth};
      count = wide ? wide_conv_add_relu_backward(product, second, mask, g, partials, on_z())
                   : conv_add_relu_backward(product, {second, 1}, mask, g, centred(tensors),
                                            partials, on_z());
    };
  }
  std::vector<Values> floats_of(const float* a, const float* b) const {
    const auto n = static_cast<std::size_t>(z_shape.c);
    return {lab.floats_at(a, n), lab.floats_at(b, n)};
  }
  CentredTensors centred(int tensors) const {
    return {tensors, {{z, norm.mean}, {out, norm.mean}}};
  }
  Call finish() {
    return [this] {
      const AddedNorm added{z, norm, parameters};
      finish_norm_gradients(partials, count, {&added, 1}, nullptr, on_z());
    };
  }
  Call finish_sum() {
    return [this] { finish_norm_gradients(partials, count, {}, sum_of_g, on_z()); };
  }
  Call apply() {
    return [this] { normalise_apply(g, z, norm, false, dz, on_z()); };
  }

  Call within_unfused() {
    return in_order({apply(), lab.convolution(ConvKind::backward_data, conv, {dy, w, dz}),
                     [this] { normalise_relu_backward(dy, inner_z, inner, partials, on_y()); }});
  }
  Call within_fused() {
    if (!has_normalise_conv_relu_backward(lab.type, z_shape.c, y_shape.c)) return {};
    return [this] {
      const NormGradient from{g, z, norm};
      normalise_conv_relu_backward({dz, w, z_shape.c, &from}, inner_z, inner, dy, partials, on_y());
    };
  }
  bool has_gram() const { return has_gram_conv_relu_backward(lab.type, y_shape.c, z_shape.c); }
  /// With g (a w), where that is a product of its own.
  Call within_gram() {
    if (!has_gram()) return {};
    const Call product = [this] {
      gram_conv_relu_backward(matrices, y, g, inner_z, inner, dy, partials, on_y());
    };
    if (!gram_in_two(y_shape.c)) return product;
    return in_order({lab.convolution(ConvKind::backward_data, conv, {dy, scaled, g}), product});
  }

  Call d_product() {
    return lab.product({rows, parts_of_d, z_shape.c, y_shape.c, lab.type}, g, y, d_parts);
  }
  Call gram_product() {
    return lab.product({rows, parts_of_gram, y_shape.c, y_shape.c, lab.type}, y, y, gram_parts);
  }
  Call sum_gram() {
    return [this] {
      sum_partials(gram_parts, parts_of_gram, static_cast<int>(size / 4), gram, lab.cuda_stream);
    };
  }
  Call coefficients() {
    return [this] {
      gram_coefficients(d_parts, parts_of_d, sum_of_g, parameters, norm,
                        1.0F / static_cast<float>(rows), matrices, lab.type, lab.cuda_stream);
    };
  }
  Call weight_gradient() {
    return [this] {
      gram_weight_gradient(matrices, norm, gram, sum_of_y, dw, lab.type, lab.cuda_stream);
    };
  }
  Call weight_gradient_by_cudnn() {
    return lab.convolution(ConvKind::backward_weights, conv, {y, dw, dz});
  }
};

/// The stem, computed once by cuDNN and the passes.
struct Stem {
  Lab& lab;
  ConvShape conv{{lab.batch, 4, 224, 224}, 64, 7, 2, 3};
  ActivationShape shape = conv.y(), peak_shape = pooled(shape);
  void *x = lab.tensor(conv.x), *z = lab.tensor(shape), *dz = lab.tensor(shape);
  void *peak = lab.tensor(peak_shape), *dsum = lab.tensor(peak_shape);
  void* w = lab.random(conv.weight_count(), lab.type);
  void* dw = lab.random(conv.weight_count(), lab.type);
  std::uint8_t* argmax = lab.octets(peak_shape.count());
  NormVectors norm = lab.norm(64);
  NormParameters parameters = lab.parameters(64);
  float* partials =
      lab.floats(std::max({conv_stem_pool_partials(), conv_stem_weight_gradient_partials(),
                           reduction_scratch(shape, lab.type, 2)}));

  explicit Stem(Lab& l) : lab(l) {
    // dz = a dsum: what else it is made of would add up over all pixels
    lab.device.zero(norm.grad_b, 2 * 64 * sizeof(float), *lab.stream);
    if (const Call call = unfused()) call();
  }
  Launch on() const { return lab.on(shape); }
  double bytes() const {
    return lab.bytes(conv.x) + lab.bytes(shape) + lab.bytes(peak_shape) +
           static_cast<double>(peak_shape.count());
  }

  Call unfused() {
    return in_order({lab.convolution(ConvKind::forward, conv, {x, w, z}), [this] {
                       batch_statistics(z, parameters, norm, partials, on());
                       stem_pool(z, parameters.gamma, peak, argmax, on());
                     }});
  }
  Call fused() {
    if (!has_conv_stem_pool(lab.type, conv)) return {};
    return [this] {
      const int count = conv_stem_pool(x, w, parameters, z, peak, argmax, partials, on());
      finish_conv_stem_pool(partials, count, parameters, norm, on());
    };
  }
  Call gradient_unfused() {
    return in_order({[this] { stem_pool_apply(dsum, argmax, z, norm, dz, on()); },
                     lab.convolution(ConvKind::backward_weights, conv, {x, dw, dz})});
  }
  Call gradient_fused() {
    if (!has_conv_stem_weight_gradient(lab.type, conv)) return {};
    return [this] { conv_stem_weight_gradient(dsum, argmax, z, norm, x, dw, partials, on()); };
  }
};

Bench stem_forward(Lab& lab) {
  const auto s = std::make_shared<Stem>(lab);
  return {text_of(s->conv.x),
          s->bytes(),
          s->conv.flop(),
          {{"the kernel", s->fused()},
           {"cuDNN's convolution, batch_statistics, stem_pool", s->unfused()}},
          [s] {
            return std::vector<Values>{s->lab.rows(s->peak, s->peak_shape),
                                       s->lab.rows(s->z, s->shape),
                                       s->lab.floats_at(s->norm.invstd, 64)};
          }};
}

Bench stem_gradient(Lab& lab) {
  const auto s = std::make_shared<Stem>(lab);
  return {text_of(s->conv.x),
          s->bytes(),
          s->conv.flop(),
          {{"the kernel", s->gradient_fused()},
           {"stem_pool_apply, cuDNN's weight gradient", s->gradient_unfused()}},
          [s] {
            const std::size_t all = s->conv.weight_count();
            return std::vector<Values>{s->lab.sample(s->dw, s->lab.type, all, all, all)};
          },
          /*roundings=*/40};  // what cuDNN's fast kernels of float16 lose
}

using Shared = std::shared_ptr<Block>;

/// Rows and columns, channels of y, depth of the next convolution.
struct Place {
  int hw, channels, next_depth;
};
Kernel kernel(const char* name, const char* what, const std::vector<Place>& places,
              const std::function<Bench(const Shared&)>& of) {
  Kernel made{name, what, {}};
  for (const Place& at : places)
    made.shapes.push_back([at, of](Lab& lab) {
      const auto block = std::make_shared<Block>(lab, at.hw, at.channels, at.next_depth);
      Bench bench = of(block);
      bench.shape = block->text();
      return bench;
    });
  return made;
}

std::function<Bench(const Shared&)> forward_end(bool wide) {
  return [wide](const Shared& b) {
    return Bench{
        "",
        b->of_y() + 2 * b->of_z() + b->of_z() / 16,  // and a mask
        b->conv.flop(),
        {{"the kernel", b->end_without_z(wide)},
         {"cuDNN's convolution, normalise_add_relu", in_order({b->convolution(), b->end_with_z()})},
         {wide ? "on mma.sync" : "on wgmma", b->end_without_z(!wide)}},
        [b] { return std::vector<Values>{b->lab.rows(b->out, b->z_shape)}; }};
  };
}

std::function<Bench(const Shared&)> backward_end(int tensors, bool wide) {
  return [tensors, wide](const Shared& b) {
    return Bench{"",
                 b->lab.bytes(b->next_conv.y()) + (2 + tensors) * b->of_z() + b->of_z() / 16,
                 b->next_conv.flop(),
                 {{"the kernel", b->end_of_gradient_fused(tensors, wide)},
                  {"cuDNN's data gradient, add_relu_backward",
                   in_order({b->next_gradient(), b->end_of_gradient(b->second, tensors)})},
                  {wide ? "on mma.sync" : "on wgmma",
                   tensors == 0 ? b->end_of_gradient_fused(0, !wide) : Call{}}},
                 [b, tensors] {
                   return std::vector<Values>{
                       b->lab.rows(b->g, b->z_shape),
                       b->lab.totals(b->partials, b->count, 1 + tensors, b->z_shape.c)};
                 }};
  };
}

/// dy of what is inside a block. Fused it is masked already, unfused not yet: it is compared as the
/// next pass reads it. Its sums are not: nearly all of them cancels.
Bench within(const Shared& b, double bytes, double flop, const Call& run) {
  return {
      "",
      bytes,
      flop,
      {{"the kernel", run},
       {"normalise_apply, cuDNN's data gradient, normalise_relu_backward", b->within_unfused()}},
      [b] {
        void* const masked = b->lab.tensor(b->y_shape);
        normalise_apply(b->dy, b->inner_z, b->inner, true, masked, b->on_y());
        return std::vector<Values>{b->lab.rows(masked, b->y_shape)};
      }};
}

double flop_of_gram(const Shared& b) {
  return 2.0 * static_cast<double>(b->y_shape.count()) * b->y_shape.c;
}

Bench gram_statistics_of(const Shared& b) {
  return {"",
          static_cast<double>(b->size),  // of G
          0,
          {{"the kernel", b->statistics_of_gram()},
           {"batch_statistics, from z", b->statistics()},
           {"G, by cublasLt, and its sum", in_order({b->gram_product(), b->sum_gram()})}},
          [b] { return b->floats_of(b->norm.mean, b->norm.invstd); }};
}

Bench gram_coefficients_of(const Shared& b) {
  return {"",
          4.0 * static_cast<double>(b->size) * b->parts_of_d,
          0,
          {{"the kernels", b->coefficients()},
           {"finish_norm_gradients, from sums over z",
            in_order({b->end_of_gradient(nullptr, 1), b->finish()})},
           {"D, by cublasLt", b->d_product()}},
          [b] { return b->floats_of(b->norm.grad_a, b->norm.grad_b); }};
}

Bench gram_weight_gradient_of(const Shared& b) {
  return {
      "",
      8.0 * static_cast<double>(b->size),
      0,
      {{"the kernel", b->weight_gradient()}, {"cuDNN, from dz", b->weight_gradient_by_cudnn()}},
      [b] {
        return std::vector<Values>{b->lab.sample(b->dw, b->lab.type, b->size, b->size, b->size)};
      }};
}

}  // namespace

std::vector<Kernel> all_kernels() {
  const std::vector<Place> all{{56, 64, 64}, {28, 128, 128}, {14, 256, 256}};
  const std::vector<Place> wide{all[1], all[2]};
  const std::vector<Place> narrow{all[0], all[1]};
  return {
      kernel("conv_normalise_add_relu", "the end of a block without z, on mma.sync", all,
             forward_end(false)),
      kernel("wide_conv_normalise_add_relu", "the same on wgmma", wide, forward_end(true)),
      kernel("conv_add_relu_backward", "the gradient at the end of a block, on mma.sync", all,
             backward_end(0, false)),
      kernel("conv_add_relu_backward_centred", "the same, with the sums of a norm over z", narrow,
             backward_end(1, false)),
      kernel("wide_conv_add_relu_backward", "the same on wgmma, without z", wide,
             backward_end(0, true)),
      kernel("normalise_conv_relu_backward", "the gradient inside a block, which stores dz", narrow,
             [](const Shared& b) {
               return within(b, 3 * b->of_z() + 2 * b->of_y(), b->conv.flop(), b->within_fused());
             }),
      kernel("gram_conv_relu_backward", "the gradient inside a block through the Gram matrix", all,
             [](const Shared& b) {
               return within(b, b->of_z() + 3 * b->of_y(), flop_of_gram(b) + b->conv.flop(),
                             b->within_gram());
             }),
      kernel("gram_statistics", "mean and variance of z from G", all, gram_statistics_of),
      kernel("gram_coefficients", "D's sum, the norm's gradient and H", all, gram_coefficients_of),
      kernel("gram_weight_gradient", "dw from D and G", all, gram_weight_gradient_of),
      {"conv_stem_pool", "the stem's convolution, max-pooling and statistics", {stem_forward}},
      {"conv_stem_weight_gradient", "the gradient of its weights", {stem_gradient}},
  };
}

}  // namespace shakedown::timing
