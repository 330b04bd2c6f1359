// What a step is made of, today's kernels next to those that read and write less: compact gradients
// of strided shortcuts, and the norm that ends a block through the Gram matrix, forward and
// backward (resnet/gpu/unit_kernels.hpp). Microseconds at ResNet-50's shapes.
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/experiments/gpu/lab.hpp"

namespace shakedown::experiments {
namespace {

using namespace shakedown::gpu;

// ---- compact gradients --------------------------------------------------------------------------

/// The end of a block before a strided one: its gradient is a product of `depth` and a strided
/// shortcut's gradient.
void compact(Lab& lab, const ActivationShape& x, int filters, int depth) {
  const std::string title = fmt::format("{} x {} {}", x.n, x.h, x.c);
  const ConvShape strided_conv{x, filters, 1, 2, 0};
  ConvShape compact_conv = strided_conv;
  compact_conv.x = strided(x, 2);
  compact_conv.stride = 1;
  const Buffer dz = lab.tensor(strided_conv.y()),
               w = lab.random(strided_conv.weight_count(), lab.type);
  const Buffer dx = lab.tensor(x), even = lab.tensor(compact_conv.x);
  lab.timer.compare(
      title + " dgrad",
      {{"strided: zeros written",
        lab.convolution(ConvKind::backward_data, strided_conv, {dx.data(), w.data(), dz.data()})},
       {"compact", lab.convolution(ConvKind::backward_data, compact_conv,
                                   {even.data(), w.data(), dz.data()})}});

  const Buffer narrow = lab.tensor({x.n, depth, x.h, x.w}), z = lab.tensor(x), out = lab.tensor(x);
  const Buffer weights = lab.random(static_cast<std::size_t>(depth * x.c), lab.type);
  const Buffer mask = lab.random(mask_bytes(x, lab.type) / 2, DataType::float16);
  const Norm norm(lab, x.c);
  const Buffer partials = lab.floats(reduction_scratch(x, lab.type, 3));
  const CentredTensors centred{1, {{z.data(), norm.vectors.mean}}};
  const auto* bits = static_cast<const std::uint8_t*>(mask.data());
  const auto fused = [&](const Addend& second) -> Call {
    return [&lab, &narrow, &weights, &out, &partials, bits, centred, second, x, depth] {
      conv_add_relu_backward({narrow.data(), weights.data(), depth}, second, bits, out.data(),
                             centred, x, lab.type, floats_in(partials), lab.stream);
    };
  };
  const auto unfused = [&](const Addend& second) -> Call {
    return [&lab, &out, &partials, bits, centred, second, x] {
      add_relu_backward(out.data(), second, bits, centred, x, lab.type, floats_in(partials),
                        lab.stream);
    };
  };
  lab.timer.compare(title + " end", {{"fused, whole", fused({dx.data(), 1})},
                                     {"fused, compact", fused({even.data(), 2})},
                                     {"unfused, whole", unfused({dx.data(), 1})},
                                     {"unfused, compact", unfused({even.data(), 2})}});
}

// ---- the norm that ends a block -----------------------------------------------------------------

/// The last convolution of a block, y to z, the norm after it, the block's end, and the norm
/// before.
struct Block {
  Lab& lab;
  ActivationShape y, z;
  int next_depth;          // of the next block's first convolution
  std::size_t rows, size;  // of y; of the weights
  Buffer y_data, inner_z, dy, z_data, g, dz, second, narrow, mask, w, next_w, dw;
  Norm norm, inner;
  Buffer partials, inner_partials, d_parts, g_parts, gram, sum_of_y, sum_of_g;
  Buffer d, largest, bias, unscale, placed, scaled;
  GramMatrices matrices;
  ConvShape conv;

  Block(Lab& l, int n, int hw, int channels, int depth)
      : lab(l),
        y{n, channels, hw, hw},
        z{n, 4 * channels, hw, hw},
        next_depth(depth),
        rows(y.count() / static_cast<std::size_t>(channels)),
        size(static_cast<std::size_t>(4 * channels * channels)),
        y_data(lab.tensor(y)),
        inner_z(lab.tensor(y)),
        dy(lab.tensor(y)),
        z_data(lab.tensor(z)),
        g(lab.tensor(z)),
        dz(lab.tensor(z)),
        second(lab.tensor(z)),
        narrow(lab.tensor({n, depth, hw, hw})),
        mask(lab.random(mask_bytes(z, lab.type) / 2, DataType::float16)),
        w(lab.random(size, lab.type)),
        next_w(lab.random(static_cast<std::size_t>(depth * z.c), lab.type)),
        dw(lab.random(size, lab.type)),
        norm(lab, z.c),
        inner(lab, y.c),
        partials(lab.floats(reduction_scratch(z, lab.type, 3))),
        inner_partials(lab.floats(reduction_scratch(y, lab.type, 2))),
        d_parts(lab.floats(static_cast<std::size_t>(y.c > 128 ? 64 : 256) * size)),
        g_parts(lab.floats(256 * size / 4)),
        gram(lab.floats(size / 4)),
        sum_of_y(lab.floats(static_cast<std::size_t>(y.c))),
        sum_of_g(lab.floats(static_cast<std::size_t>(z.c))),
        d(lab.floats(size)),
        largest(lab.floats(static_cast<std::size_t>(z.c))),
        bias(lab.floats(static_cast<std::size_t>(y.c))),
        unscale(lab.floats(16)),
        placed(lab.random(size / 4 * 5, lab.type)),
        scaled(lab.random(size, lab.type)),
        matrices{y.c,
                 z.c,
                 w.data(),
                 floats_in(d),
                 floats_in(largest),
                 floats_in(bias),
                 floats_in(unscale),
                 placed.data(),
                 gram_in_two(y.c) ? scaled.data() : nullptr},
        conv{y, z.c, 1, 1, 0} {}

  Call end(int centred) {
    CentredTensors all{centred, {{z_data.data(), norm.vectors.mean}}};
    return [this, all] {
      end_partials =
          conv_add_relu_backward({narrow.data(), next_w.data(), next_depth}, {second.data(), 1},
                                 static_cast<const std::uint8_t*>(mask.data()), g.data(), all, z,
                                 lab.type, floats_in(partials), lab.stream);
    };
  }
  /// Null where there is none.
  Call wide_end() {
    if (!has_wide_conv_add_relu_backward(lab.type, next_depth, z.c)) return {};
    return [this] {
      end_partials = wide_conv_add_relu_backward({narrow.data(), next_w.data(), next_depth},
                                                 second.data(), mask_bits(), g.data(), z, lab.type,
                                                 floats_in(partials), lab.stream);
    };
  }
  Call end_as_chosen() {
    const Call wide = wide_end();
    return wide ? wide : end(0);
  }
  Call finish_end() {
    return [this] {
      const AddedNorm main{z_data.data(), norm.vectors, norm.of};
      finish_add_relu_backward(floats_in(partials), end_partials, main, nullptr, z, lab.type,
                               lab.stream);
    };
  }
  Call finish_sum() {
    return [this] {
      finish_add_relu_backward_sum(floats_in(partials), end_partials, floats_in(sum_of_g), nullptr,
                                   z, lab.type, lab.stream);
    };
  }
  /// Null where there is none.
  Call within_fused() {
    if (!has_normalise_conv_relu_backward(lab.type, z.c, y.c)) return {};
    return [this] {
      const NormGradient from{g.data(), z_data.data(), norm.vectors};
      normalise_conv_relu_backward({dz.data(), w.data(), z.c, &from}, inner_z.data(), inner.vectors,
                                   dy.data(), y, lab.type, floats_in(inner_partials), lab.stream);
    };
  }
  Call within_unfused() {
    return [this, dgrad = lab.convolution(ConvKind::backward_data, conv,
                                          {dy.data(), w.data(), dz.data()})] {
      normalise_apply(g.data(), z_data.data(), norm.vectors, dz.data(), z, lab.type, lab.stream);
      dgrad();
      normalise_relu_backward(dy.data(), inner_z.data(), inner.vectors, y, lab.type,
                              floats_in(inner_partials), lab.stream);
    };
  }
  /// g (a w), where it is a product of its own.
  Call of_scaled() {
    if (!gram_in_two(y.c)) return [] {};
    return lab.convolution(ConvKind::backward_data, conv, {dy.data(), scaled.data(), g.data()});
  }
  Call within_gram() {
    return [this, first = of_scaled()] {
      first();
      gram_conv_relu_backward(matrices, y_data.data(), g.data(), inner_z.data(), inner.vectors,
                              dy.data(), y, lab.type, floats_in(inner_partials), lab.stream);
    };
  }
  Call weights() {
    return lab.convolution(ConvKind::backward_weights, conv, {y_data.data(), dw.data(), dz.data()});
  }
  Call d_product(int parts) {
    return lab.product(parts, rows, g.data(), z.c, y_data.data(), y.c, floats_in(d_parts));
  }
  Call gram_product(int parts) {
    return lab.product(parts, rows, y_data.data(), y.c, y_data.data(), y.c, floats_in(g_parts));
  }
  Call coefficients(int parts) {
    return [this, parts] {
      gram_coefficients(floats_in(d_parts), parts, floats_in(sum_of_g), norm.of, norm.vectors,
                        1.0F / static_cast<float>(rows), matrices, lab.type, lab.stream);
    };
  }
  Call sum_gram(int parts) {
    return [this, parts] {
      sum_partials(floats_in(g_parts), parts, static_cast<int>(size / 4), floats_in(gram),
                   lab.stream);
    };
  }
  Call weight_gradient() {
    return [this] {
      gram_weight_gradient(matrices, norm.vectors, floats_in(gram), floats_in(sum_of_y), dw.data(),
                           lab.type, lab.stream);
    };
  }
  Call normalise() {
    return [this] {
      normalise_relu(inner_z.data(), inner.vectors, y_data.data(), y, lab.type, lab.stream);
    };
  }
  Call normalise_sums() {
    return [this] {
      const int count = normalise_relu_sums(inner_z.data(), inner.vectors, y_data.data(), y,
                                            lab.type, floats_in(inner_partials), lab.stream);
      sum_partials(floats_in(inner_partials), count, y.c, floats_in(sum_of_y), lab.stream);
    };
  }
  Call convolution() {
    return lab.convolution(ConvKind::forward, conv, {y_data.data(), w.data(), z_data.data()});
  }
  /// Null where cuDNN has none: in bf16.
  Call convolution_with_sums() {
    const Call with_sums =
        lab.convolution(ConvKind::forward_with_sums, conv,
                        {y_data.data(), w.data(), z_data.data(), floats_in(partials)});
    if (!with_sums) return {};
    return [this, with_sums] {
      with_sums();
      statistics_of_sums(floats_in(partials), z, norm.of, norm.vectors, lab.stream);
    };
  }
  Call statistics() {
    return [this] {
      batch_statistics(z_data.data(), z, lab.type, norm.of, norm.vectors, floats_in(partials),
                       lab.stream);
    };
  }
  Call end_with_z(bool projected) {
    return [this, projected] {
      normalise_add_relu(z_data.data(), norm.vectors, second.data(),
                         projected ? &norm.vectors : nullptr, g.data(), mask_bits(), z, lab.type,
                         lab.stream);
    };
  }
  Call statistics_of_gram() {
    return [this] {
      gram_statistics(w.data(), y.c, floats_in(gram), floats_in(sum_of_y), z, norm.of, norm.vectors,
                      lab.type, lab.stream);
    };
  }
  /// Null with `wide` where there is none.
  Call end_without_z(bool projected, bool wide) {
    if (wide && !has_wide_conv_normalise_add_relu(lab.type, y.c, z.c)) return {};
    return [this, projected, run = wide ? wide_conv_normalise_add_relu : conv_normalise_add_relu] {
      run({y_data.data(), w.data(), y.c}, norm.vectors, second.data(),
          projected ? &norm.vectors : nullptr, g.data(), mask_bits(), z, lab.type, lab.stream);
    };
  }
  std::uint8_t* mask_bits() const { return static_cast<std::uint8_t*>(mask.data()); }

  int end_partials = 1;
};

Call in_order(std::vector<Call> calls) {
  return [calls = std::move(calls)] {
    for (const Call& call : calls) call();
  };
}

void forward_of(Block& block, const std::string& title, int parts_of_g) {
  Timer& timer = block.lab.timer;
  timer.compare(title + " forward",
                {{"norm", block.normalise()}, {"norm and sums of y", block.normalise_sums()}});
  timer.compare(title + " statistics", {{"from z", block.statistics()},
                                        {"G in parts", block.gram_product(parts_of_g)},
                                        {"G's sum", block.sum_gram(parts_of_g)},
                                        {"from G", block.statistics_of_gram()}});
  for (const bool projected : {false, true})
    timer.compare(title + (projected ? " end, projection" : " end, identity"),
                  {{"convolution", block.convolution()},
                   {"convolution with sums, statistics", block.convolution_with_sums()},
                   {"norm, shortcut, ReLU", block.end_with_z(projected)},
                   {"all of it without z", block.end_without_z(projected, false)},
                   {"the same, wgmma", block.end_without_z(projected, true)}});
}

/// Forward from the norm before the convolution on, then backward from the block's end on.
void all_of(Block& block, const std::string& title, int parts_of_d, int parts_of_g) {
  const Call weights = block.weights();
  const Call d = block.d_product(parts_of_d);
  const Call g = block.gram_product(parts_of_g);
  if (!d || !g) return;
  const Call with_sums = block.convolution_with_sums();
  const Call convolution =
      with_sums ? with_sums : in_order({block.convolution(), block.statistics()});
  const Call today = in_order({block.normalise(), convolution, block.end_with_z(false)});
  const Call gram =
      in_order({block.normalise_sums(), g, block.sum_gram(parts_of_g), block.statistics_of_gram(),
                block.end_without_z(false, has_wide_conv_normalise_add_relu(
                                               block.lab.type, block.y.c, block.z.c))});
  block.lab.timer.compare(title + " all forward", {{"today", today}, {"Gram", gram}});
  const std::vector<Call> end{block.end(1), block.finish_end()};
  const Call gram_backward =
      in_order({block.end_as_chosen(), block.finish_sum(), d, block.coefficients(parts_of_d),
                block.within_gram(), block.weight_gradient()});
  const Call unfused = in_order({end[0], end[1], block.within_unfused(), weights});
  block.lab.timer.compare(title + " all", {{"today, unfused within", in_order({today, unfused})},
                                           {"Gram", in_order({gram, gram_backward})}});
}

void gram_of(Lab& lab, int n, int hw, int channels, int next_depth) {
  const std::string title = fmt::format("{} x {} {}->{}", n, hw, channels, 4 * channels);
  Block block(lab, n, hw, channels, next_depth);
  lab.timer.compare(fmt::format("{} end {}", title, next_depth),
                    {{"with z", block.end(1)},
                     {"without z", block.end(0)},
                     {"without z, wgmma", block.wide_end()}});
  if (!has_gram_conv_relu_backward(lab.type, channels, 4 * channels)) {
    fmt::print("{}: no product on wgmma here\n", title);
    return;
  }
  lab.timer.compare(title + " dy", {{"unfused", block.within_unfused()},
                                    {"fused", block.within_fused()},
                                    {"Gram, the product", block.within_gram()}});
  std::vector<Row> products{{"dw by cuDNN", block.weights()}};
  if (gram_in_two(channels))
    lab.timer.compare(title + " dy in two",
                      {{"g (a w)", block.of_scaled()}, {"both", block.within_gram()}});
  const int parts_of_d = gram_parts_of_d(block.rows, channels);
  const int parts_of_g = gram_parts_of_g(block.rows, channels);
  const int most_of_d = channels > 128 ? 64 : 256;
  for (const int parts : {8, 16, 32, 64, 128, 256})
    if (parts <= most_of_d && block.rows % static_cast<std::size_t>(parts) == 0)
      products.push_back({fmt::format("D in {} parts", parts), block.d_product(parts)});
  for (const int parts : {16, 32, 64, 128, 256})
    if (block.rows % static_cast<std::size_t>(parts) == 0)
      products.push_back({fmt::format("G in {} parts", parts), block.gram_product(parts)});
  products.push_back({"D's sums, coefficients, H", block.coefficients(parts_of_d)});
  products.push_back({"G's sum", block.sum_gram(parts_of_g)});
  products.push_back({"dw from D and G", block.weight_gradient()});
  lab.timer.compare(title + " weights", products);
  forward_of(block, title, parts_of_g);
  all_of(block, title, parts_of_d, parts_of_g);
}

}  // namespace

void gram(const Bench& bench, int batch) {
  for (const Precision precision : {Precision::fp16, Precision::bf16}) {
    fmt::print(
        "{}, batch {}; median, lowest, highest of {} turns; less the first row of its group\n",
        name_of(precision), batch, kTurns);
    Lab lab(bench, precision);
    compact(lab, {batch, 256, 56, 56}, 512, 128);
    compact(lab, {batch, 512, 28, 28}, 1024, 256);
    compact(lab, {batch, 1024, 14, 14}, 2048, 512);
    gram_of(lab, batch, 56, 64, 64);
    gram_of(lab, batch, 56, 64, 128);
    gram_of(lab, batch, 28, 128, 128);
    gram_of(lab, batch, 28, 128, 256);
    gram_of(lab, batch, 14, 256, 256);
  }
}

}  // namespace shakedown::experiments
