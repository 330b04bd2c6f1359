// Every unit, forward and backward, against the naive loops, on every backend and precision.
#include <fmt/format.h>

#include "resnet/units.hpp"
#include "tests/catch.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

using reference::Values;
using test::random_values;
using test::relative_error;
using test::widen;

struct Case {
  BackendKind backend;
  Precision precision;
  Fusion fusion = Fusion::none;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (BackendKind kind : test::backends()) {
    list.push_back({kind, Precision::fp32});
    if (kind == BackendKind::gpu)
      for (Precision p : {Precision::tf32, Precision::fp16, Precision::bf16})
        list.push_back({kind, p});
    if (kind == BackendKind::gpu) list.push_back({kind, Precision::fp16, Fusion::statistics});
  }
  return list;
}

/// Relative error that outputs and gradients may have: a few roundings of the type, and for the
/// gradients the sums that follow.
double tolerance(Precision precision) {
  switch (precision) {
    case Precision::fp32: return 2e-5;
    case Precision::tf32: return 3e-3;
    case Precision::fp16: return 5e-3;
    case Precision::bf16: return 4e-2;
  }
  return 0;
}

/// One unit with its weights, inputs and outputs on a device.
class Rig {
 public:
  Rig(Case c, Layers layers, int classes)
      : device(test::open_device(c.backend)),
        stream(device->make_stream()),
        stem_channels(shakedown::stem_channels(c.backend, c.precision)),
        table(layers, classes, stem_channels),
        weights(*device, *stream, table, compute_type(c.precision)),
        scalars(*device, sizeof(StepScalars)),
        metrics(*device, sizeof(HeadMetrics)),
        log(*device, *stream) {
    Tuning tuning;
    tuning.autotune = false;
    tuning.fusion = c.fusion;
    const UnitContext context{*device, *stream, c.precision, table, weights, plan, log, tuning};
    units = c.backend == BackendKind::gpu ? gpu::make_units(context) : cpu::make_units(context);
    const StepScalars initial{};
    upload<StepScalars>(*device, *stream, scalars.data(), std::span(&initial, 1));
    device->zero(metrics.data(), metrics.bytes(), *stream);
  }

  const Slot* activation(const char* name, const ActivationShape& shape) {
    return plan.reserve(name, units->activation_bytes(shape), 0, 1);
  }

  NormedConv normed(const ConvLayer& layer, const ActivationShape& x) const {
    return {{x, layer.k, layer.kernel, layer.stride, layer.pad()},
            table.parameter(layer.conv + ".weight"),
            table.parameter(layer.norm + ".weight"),
            table.parameter(layer.norm + ".bias"),
            table.statistic(layer.norm)};
  }

  /// Gives the plan its memory, poisoned so that what a unit forgets to write shows.
  void bind(Unit& unit) {
    plan.place();
    arena = Buffer(*device, plan.bytes());
    const std::vector<std::uint8_t> poison(plan.bytes(), 0xFF);  // NaN in every float type
    upload<std::uint8_t>(*device, *stream, arena.data(), poison);
    plan.bind(arena.data());
    unit.bind();
  }

  /// Seeded values for every parameter; returned in torchvision's layout, as the unit sees them.
  void set_weights() {
    std::vector<float> master(table.stored_count(), 0.0F);
    std::uint64_t seed = 100;
    for (const Parameter& p : table.parameters()) {
      const bool gamma = p.kind == ParameterKind::norm_weight;
      auto values = random_values(p.count, seed++, gamma ? 0.5 : -0.3, gamma ? 1.5 : 0.3);
      units->pack_parameter(p, values, std::span(master).subspan(p.offset, p.stored));
    }
    upload<float>(*device, *stream, weights.master().data, master);
    if (weights.has_copy()) device->kernels().convert(weights.master(), weights.compute(), *stream);
    std::vector<float> statistics = random_values(table.statistics_count(), 7, 0.5, 1.5);
    upload<float>(*device, *stream, weights.statistics().data, statistics);
    // gradients are overwritten, not added to
    std::vector<float> dirt(table.stored_count(), 1e3F);
    const Buffer wide = test::to_device(*device, *stream, dirt);
    device->kernels().convert(wide.view(DataType::float32), weights.gradients(), *stream);
    stream->synchronize();
  }

  /// What the convolutions multiply with: rounded to the compute type.
  Values weight(int index) {
    Buffer wide(*device, table.stored_count() * sizeof(float));
    const bool conv =
        table.parameters()[static_cast<std::size_t>(index)].kind == ParameterKind::conv_weight ||
        table.parameters()[static_cast<std::size_t>(index)].kind == ParameterKind::linear_weight;
    device->kernels().convert(conv ? weights.compute() : weights.master(),
                              wide.view(DataType::float32), *stream);
    return unpacked(wide, index);
  }
  Values gradient(int index) {
    Buffer wide(*device, table.stored_count() * sizeof(float));
    device->kernels().convert(weights.gradients(), wide.view(DataType::float32), *stream);
    return unpacked(wide, index);
  }
  Values running(const float* data, int channels) {
    return widen(download<float>(*device, *stream, data, static_cast<std::size_t>(channels)));
  }

  /// Packs values into a slot and returns what the type made of them.
  Values set(const Slot* slot, const ActivationShape& shape, const std::vector<float>& values) {
    std::vector<std::byte> stored(slot->bytes());
    units->pack_activation(values, shape, stored);
    upload<std::byte>(*device, *stream, slot->data(), stored);
    return get(slot, shape);
  }
  Values get(const Slot* slot, const ActivationShape& shape) {
    const auto stored = download<std::byte>(*device, *stream, slot->data(), slot->bytes());
    std::vector<float> values(shape.count());
    units->unpack_activation(stored, shape, values);
    return widen(values);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  int stem_channels;
  ParameterTable table;
  Weights weights;
  Buffer scalars;
  Buffer metrics;
  WorkLog log;
  MemoryPlan plan;
  std::unique_ptr<UnitFactory> units;
  Buffer arena;

 private:
  Values unpacked(const Buffer& wide, int index) {
    const Parameter& p = table.parameters()[static_cast<std::size_t>(index)];
    const auto flat = download<float>(*device, *stream, wide.data(), table.stored_count());
    std::vector<float> values(p.count);
    units->unpack_parameter(p, std::span(flat).subspan(p.offset, p.stored), values);
    return widen(values);
  }
};

/// The unit's own forward pass against its own backward pass: how fast sum(y * dy) changes when x
/// moves along its gradient, by central differences, over what the gradient says.
double derivative_ratio(Rig& rig, Unit& unit, const Slot* x_slot, const ActivationShape& x_shape,
                        const Values& x, const Slot* y_slot, const ActivationShape& y_shape,
                        const Values& dy, const Values& dx) {
  constexpr double kStep =
      2e-3;  // float32: small enough for few ReLUs to turn, large enough to see
  double squares = 0;
  for (double d : dx) squares += d * d;
  const double unit_step =
      std::sqrt(static_cast<double>(dx.size()) / squares);  // moves x by 1 (rms)
  const auto loss_at = [&](double step) {
    std::vector<float> moved(x.begin(), x.end());
    for (std::size_t i = 0; i < moved.size(); ++i)
      moved[i] += static_cast<float>(step * unit_step * dx[i]);
    rig.set(x_slot, x_shape, moved);
    unit.forward(Pass::training);
    const Values y = rig.get(y_slot, y_shape);
    double loss = 0;
    for (std::size_t i = 0; i < y.size(); ++i) loss += y[i] * dy[i];
    return loss;
  };
  return (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep) / (unit_step * squares);
}

Layers layers_with(ResidualBlock block, int features = 64) {
  Layers layers;
  layers.stem = {"conv1", "bn1", 3, 64, 7, 2};
  layers.blocks.push_back(std::move(block));
  layers.features = features;
  return layers;
}

/// relu(norm(conv(x)) [+ s]) and its gradients, by the naive loops.
struct ReferenceConvNorm {
  ConvShape conv;
  Values x, w, gamma, beta;
  Values z;
  reference::Normed normed;

  ReferenceConvNorm(Rig& rig, const NormedConv& layer, Values input)
      : conv(layer.conv),
        x(std::move(input)),
        w(rig.weight(layer.weight)),
        gamma(rig.weight(layer.gamma)),
        beta(rig.weight(layer.beta)),
        z(reference::convolve(x, w, conv)),
        normed(reference::normalise(z, conv.y(), gamma, beta)) {}

  struct Gradients {
    Values dx, dw, dgamma, dbeta;
  };
  Gradients backward(const Values& dout) const {
    const auto norm = reference::normalise_backward(dout, z, conv.y(), gamma);
    return {reference::convolve_dx(norm.dx, w, conv), reference::convolve_dw(norm.dx, x, conv),
            norm.dgamma, norm.dbeta};
  }
  Values evaluated(Rig& rig, const NormedConv& layer) const {
    return reference::normalise_with(
        z, conv.y(), gamma, beta, rig.running(rig.weights.running_mean(layer.statistics), conv.k),
        rig.running(rig.weights.running_variance(layer.statistics), conv.k));
  }
};

void check_parameters(Rig& rig, const NormedConv& layer, const ReferenceConvNorm::Gradients& g,
                      double limit) {
  CHECK(relative_error(rig.gradient(layer.weight), g.dw) < limit);
  CHECK(relative_error(rig.gradient(layer.gamma), g.dgamma) < limit);
  CHECK(relative_error(rig.gradient(layer.beta), g.dbeta) < limit);
}

}  // namespace

TEST_CASE("ConvNorm matches the naive loops", "[units]") {
  const Case c = GENERATE(from_range(cases()));
  const int kernel = GENERATE(1, 3);
  const int stride = GENERATE(1, 2);
  const int size = GENERATE(7, 10);
  CAPTURE(name_of(c.backend), name_of(c.precision), kernel, stride, size);
  const ConvLayer layer{"layer1.0.conv1", "layer1.0.bn1", 64, 128, kernel, stride};
  Rig rig(c, layers_with({"layer1.0", {layer}, std::nullopt}), 10);
  const ActivationShape x_shape{3, 64, size, size};
  const NormedConv normed = rig.normed(layer, x_shape);
  const ActivationShape y_shape = normed.conv.y();

  ConvNormSpec spec{{0, 1},
                    normed,
                    rig.activation("x", x_shape),
                    rig.activation("y", y_shape),
                    rig.activation("dy", y_shape),
                    rig.activation("dx", x_shape)};
  const auto unit = rig.units->conv_norm(spec);
  rig.bind(*unit);
  rig.set_weights();
  const Values x = rig.set(spec.x, x_shape, random_values(x_shape.count(), 1));
  const Values dy = rig.set(spec.dy, y_shape, random_values(y_shape.count(), 2));
  const Values old_mean = rig.running(rig.weights.running_mean(normed.statistics), 128);
  const Values old_variance = rig.running(rig.weights.running_variance(normed.statistics), 128);
  const ReferenceConvNorm expected(rig, normed, x);
  const double limit = tolerance(c.precision);

  unit->forward(Pass::evaluation);
  CHECK(relative_error(rig.get(spec.y, y_shape), reference::relu(expected.evaluated(rig, normed))) <
        limit);

  unit->forward(Pass::training);
  const Values y = reference::relu(expected.normed.y);
  CHECK(relative_error(rig.get(spec.y, y_shape), y) < limit);
  const double n = static_cast<double>(y_shape.count()) / y_shape.c;
  Values mean = old_mean;
  Values variance = old_variance;
  for (std::size_t k = 0; k < 128; ++k) {
    mean[k] = 0.9 * mean[k] + 0.1 * expected.normed.mean[k];
    variance[k] = 0.9 * variance[k] + 0.1 * expected.normed.variance[k] * n / (n - 1);
  }
  CHECK(relative_error(rig.running(rig.weights.running_mean(normed.statistics), 128), mean) <
        limit);
  CHECK(relative_error(rig.running(rig.weights.running_variance(normed.statistics), 128),
                       variance) < limit);

  // the mask is the unit's own: in 16 bits a value near 0 may round to the other side
  unit->backward();
  const auto g = expected.backward(reference::relu_backward(dy, rig.get(spec.y, y_shape)));
  const Values dx = rig.get(spec.dx, x_shape);
  CHECK(relative_error(dx, g.dx) < 2 * limit);
  check_parameters(rig, normed, g, 2 * limit);
  if (c.precision == Precision::fp32)
    CHECK(derivative_ratio(rig, *unit, spec.x, x_shape, x, spec.y, y_shape, dy, dx) ==
          Approx(1).epsilon(0.03));
}

TEST_CASE("ConvNormAdd matches the naive loops", "[units]") {
  const Case c = GENERATE(from_range(cases()));
  const bool projected = GENERATE(false, true);
  const bool two_addends = GENERATE(false, true);
  const int size = GENERATE(5, 8);
  CAPTURE(name_of(c.backend), name_of(c.precision), projected, two_addends, size);
  // path: 64 -> 128 at stride 1, from a tensor of its own; shortcut: the block's input
  const ConvLayer layer{"layer1.0.conv1", "layer1.0.bn1", 64, 128, 1, 1};
  ResidualBlock block{"layer1.0", {layer}, std::nullopt};
  if (projected) block.shortcut = {"layer1.0.downsample.0", "layer1.0.downsample.1", 64, 128, 1, 2};
  Rig rig(c, layers_with(block), 10);
  const ActivationShape x_shape{3, 64, size, size};
  const NormedConv normed = rig.normed(layer, x_shape);
  const ActivationShape y_shape = normed.conv.y();
  const ActivationShape input_shape =
      projected ? ActivationShape{3, 64, 2 * size - 1, 2 * size - 1} : y_shape;

  ConvNormAddSpec spec;
  spec.when = {0, 1};
  spec.layer = normed;
  spec.x = rig.activation("x", x_shape);
  spec.shortcut = rig.activation("input", input_shape);
  if (projected) spec.shortcut_layer = rig.normed(*block.shortcut, input_shape);
  spec.y = rig.activation("y", y_shape);
  spec.dy.first = rig.activation("dy a", y_shape);
  if (two_addends) spec.dy.second = rig.activation("dy b", y_shape);
  spec.dx = rig.activation("dx", x_shape);
  spec.dshortcut = projected ? rig.activation("dshortcut", input_shape) : spec.dy.first;
  const auto unit = rig.units->conv_norm_add(spec);
  rig.bind(*unit);
  rig.set_weights();
  const Values x = rig.set(spec.x, x_shape, random_values(x_shape.count(), 1));
  const Values input = rig.set(spec.shortcut, input_shape, random_values(input_shape.count(), 2));
  Values dy = rig.set(spec.dy.first, y_shape, random_values(y_shape.count(), 3));
  if (two_addends)
    dy = reference::add(dy, rig.set(spec.dy.second, y_shape, random_values(y_shape.count(), 4)));

  const double limit = tolerance(c.precision);
  const ReferenceConvNorm main(rig, normed, x);
  std::optional<ReferenceConvNorm> projection;
  if (projected) projection.emplace(rig, *spec.shortcut_layer, input);

  unit->forward(Pass::evaluation);
  const Values evaluated = reference::relu(
      reference::add(main.evaluated(rig, normed),
                     projected ? projection->evaluated(rig, *spec.shortcut_layer) : input));
  CHECK(relative_error(rig.get(spec.y, y_shape), evaluated) < limit);

  unit->forward(Pass::training);
  const Values y =
      reference::relu(reference::add(main.normed.y, projected ? projection->normed.y : input));
  CHECK(relative_error(rig.get(spec.y, y_shape), y) < limit);

  unit->backward();
  const Values dsum = reference::relu_backward(dy, rig.get(spec.y, y_shape));
  const auto g = main.backward(dsum);
  const Values dx = rig.get(spec.dx, x_shape);
  CHECK(relative_error(dx, g.dx) < 2 * limit);
  check_parameters(rig, normed, g, 2 * limit);
  const Values dinput = rig.get(spec.dshortcut, input_shape);
  if (projected) {
    const auto p = projection->backward(dsum);
    CHECK(relative_error(dinput, p.dx) < 2 * limit);
    check_parameters(rig, *spec.shortcut_layer, p, 2 * limit);
  } else {
    CHECK(relative_error(dinput, dsum) < 2 * limit);
  }
  if (c.precision != Precision::fp32) return;
  CHECK(derivative_ratio(rig, *unit, spec.x, x_shape, x, spec.y, y_shape, dy, dx) ==
        Approx(1).epsilon(0.03));
  rig.set(spec.x, x_shape, {x.begin(), x.end()});
  CHECK(derivative_ratio(rig, *unit, spec.shortcut, input_shape, input, spec.y, y_shape, dy,
                         dinput) == Approx(1).epsilon(0.03));
}

/// A unit and the 1x1 convolution behind it, which computes the gradient that the unit reads.
struct Chain {
  Fused fused;
  std::vector<Values> results;  // of backward
};

/// The end of a block, and the beginning of the next.
Chain end_of_a_block(Case c, bool projected, int size) {
  const ConvLayer layer{"layer1.0.conv1", "layer1.0.bn1", 64, 256, 1, 1};
  const ConvLayer behind{"layer1.1.conv1", "layer1.1.bn1", 256, 64, 1, 1};
  ResidualBlock block{"layer1.0", {layer}, std::nullopt};
  if (projected) block.shortcut = {"layer1.0.downsample.0", "layer1.0.downsample.1", 64, 256, 1, 1};
  Layers layers = layers_with(block);
  layers.blocks.push_back({"layer1.1", {behind}, std::nullopt});
  Rig rig(c, layers, 10);
  const ActivationShape x_shape{3, 64, size, size};
  const NormedConv normed = rig.normed(layer, x_shape);
  const ActivationShape y_shape = normed.conv.y();
  const NormedConv normed_behind = rig.normed(behind, y_shape);
  const ActivationShape behind_shape = normed_behind.conv.y();
  const ActivationShape input_shape = projected ? x_shape : y_shape;

  ConvNormAddSpec spec;
  spec.when = {0, 1};
  spec.layer = normed;
  spec.x = rig.activation("x", x_shape);
  spec.shortcut = rig.activation("input", input_shape);
  if (projected) spec.shortcut_layer = rig.normed(*block.shortcut, input_shape);
  spec.y = rig.activation("y", y_shape);
  spec.dy = {rig.activation("dy a", y_shape), rig.activation("dy b", y_shape)};
  spec.dx = rig.activation("dx", x_shape);
  spec.dshortcut = projected ? rig.activation("dshortcut", input_shape) : spec.dy.first;
  ConvNormSpec next{{0, 1},
                    normed_behind,
                    spec.y,
                    rig.activation("y behind", behind_shape),
                    rig.activation("dy behind", behind_shape),
                    spec.dy.first};
  const auto unit = rig.units->conv_norm_add(spec);
  const auto next_unit = rig.units->conv_norm(next);
  rig.bind(*unit);
  next_unit->bind();
  rig.set_weights();
  rig.set(spec.x, x_shape, random_values(x_shape.count(), 1));
  rig.set(spec.shortcut, input_shape, random_values(input_shape.count(), 2));
  rig.set(spec.dy.second, y_shape, random_values(y_shape.count(), 3));
  rig.set(next.dy, behind_shape, random_values(behind_shape.count(), 4));
  unit->forward(Pass::training);
  next_unit->forward(Pass::training);
  next_unit->backward();
  unit->backward();
  Chain chain{rig.units->fused(),
              {rig.get(spec.dy.first, y_shape), rig.get(spec.dx, x_shape),
               rig.get(spec.dshortcut, input_shape)}};
  for (const Parameter& p : rig.table.parameters())
    if (p.name.starts_with("layer1"))
      chain.results.push_back(rig.gradient(rig.table.parameter(p.name)));
  return chain;
}

/// A norm within a block, and the block's end.
Chain inner_norm(Case c, int channels, int size) {
  const ConvLayer layer{"layer1.0.conv1", "layer1.0.bn1", 64, channels, 1, 1};
  const ConvLayer behind{"layer1.0.conv2", "layer1.0.bn2", channels, 4 * channels, 1, 1};
  Rig rig(c, layers_with({"layer1.0", {layer, behind}, std::nullopt}), 10);
  const ActivationShape x_shape{3, 64, size, size};
  const NormedConv normed = rig.normed(layer, x_shape);
  const ActivationShape y_shape = normed.conv.y();
  const NormedConv normed_behind = rig.normed(behind, y_shape);
  const ActivationShape behind_shape = normed_behind.conv.y();

  ConvNormSpec spec{{0, 1},
                    normed,
                    rig.activation("x", x_shape),
                    rig.activation("y", y_shape),
                    rig.activation("dy", y_shape),
                    rig.activation("dx", x_shape)};
  ConvNormAddSpec next;
  next.when = {0, 1};
  next.layer = normed_behind;
  next.x = spec.y;
  next.shortcut = rig.activation("input", behind_shape);
  next.y = rig.activation("y behind", behind_shape);
  next.dy.first = rig.activation("dy behind", behind_shape);
  next.dx = spec.dy;
  next.dshortcut = next.dy.first;
  const auto unit = rig.units->conv_norm(spec);
  const auto next_unit = rig.units->conv_norm_add(next);
  rig.bind(*unit);
  next_unit->bind();
  rig.set_weights();
  rig.set(spec.x, x_shape, random_values(x_shape.count(), 1));
  rig.set(next.shortcut, behind_shape, random_values(behind_shape.count(), 2));
  rig.set(next.dy.first, behind_shape, random_values(behind_shape.count(), 3));
  unit->forward(Pass::training);
  next_unit->forward(Pass::training);
  next_unit->backward();
  unit->backward();
  Chain chain{rig.units->fused(), {rig.get(spec.dx, x_shape)}};
  for (const Parameter& p : rig.table.parameters())
    if (p.name.starts_with("layer1"))
      chain.results.push_back(rig.gradient(rig.table.parameter(p.name)));
  return chain;
}

// They differ by roundings: where the two are one kernel, the product is nowhere rounded alone.
TEST_CASE("a first pass over a gradient is the same within the convolution behind", "[units]") {
  if (!test::has(BackendKind::gpu)) return;
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int kind = GENERATE(0, 1, 64, 128);  // ends of blocks; inner norms of so many channels
  const int size = GENERATE(1, 5, 61);       // 3 rows, some, and more than all blocks take at once
  CAPTURE(name_of(precision), kind, size);
  const auto run = [&](Fusion fusion) {
    const Case c{BackendKind::gpu, precision, fusion};
    return kind < 2 ? end_of_a_block(c, kind == 1, size) : inner_norm(c, kind, size);
  };
  const Chain apart = run(Fusion::none);
  const Chain fused = run(Fusion::gradients);
  CHECK(apart.fused.gradients == 0);
  CHECK(fused.fused.gradients == fused.fused.passes);
  CHECK(fused.fused.passes == 1);
  const double limit = precision == Precision::fp16 ? 3e-3 : 2.5e-2;
  for (std::size_t i = 0; i < apart.results.size(); ++i) {
    CAPTURE(i);
    CHECK(relative_error(fused.results[i], apart.results[i]) < limit);
  }
}

TEST_CASE("Stem matches the naive loops", "[units]") {
  const Case c = GENERATE(from_range(cases()));
  const bool two_addends = GENERATE(false, true);
  const int size = GENERATE(32, 37, 224);
  if (size == 224 && c.backend == BackendKind::cpu) return;  // cuDNN has kernels of its own for it
  CAPTURE(name_of(c.backend), name_of(c.precision), two_addends, size);
  Layers layers = layers_with({"layer1.0", {}, std::nullopt});
  Rig rig(c, layers, 10);
  const ActivationShape image{2, rig.stem_channels, size, size};
  NormedConv normed = rig.normed(layers.stem, image);
  const ActivationShape activation = normed.conv.y();
  const ActivationShape y_shape = pooled(activation);

  StemSpec spec{{0, 1}, normed, rig.activation("x", image), rig.activation("y", y_shape), {}};
  spec.dy.first = rig.activation("dy a", y_shape);
  if (two_addends) spec.dy.second = rig.activation("dy b", y_shape);
  const auto unit = rig.units->stem(spec);
  rig.bind(*unit);
  rig.set_weights();

  // images come as bytes: the normalisation is checked on the way
  std::vector<std::uint8_t> pixels;
  Random random(5);
  for (int i = 0; i < 2 * size * size * 3; ++i)
    pixels.push_back(static_cast<std::uint8_t>(random.below(256)));
  const Buffer bytes = test::to_device(*rig.device, *rig.stream, pixels);
  rig.units->normalise_images(static_cast<const std::uint8_t*>(bytes.data()), image, *spec.x);
  const Values stored = rig.get(spec.x, image);
  const ActivationShape rgb{2, 3, size, size};
  const auto plane = static_cast<std::size_t>(size * size);
  Values x(rgb.count());
  Values wanted(rgb.count());
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t ch = 0; ch < static_cast<std::size_t>(rig.stem_channels); ++ch)
      for (std::size_t i = 0; i < plane; ++i) {
        const double value =
            stored[(n * static_cast<std::size_t>(rig.stem_channels) + ch) * plane + i];
        if (ch >= 3) {
          REQUIRE(value == 0);
          continue;
        }
        x[(n * 3 + ch) * plane + i] = value;
        wanted[(n * 3 + ch) * plane + i] =
            (pixels[(n * plane + i) * 3 + ch] / 255.0 - kImageMean[ch]) / kImageDeviation[ch];
      }
  const double limit = tolerance(c.precision);
  CHECK(relative_error(x, wanted) < limit);

  Values dy = rig.set(spec.dy.first, y_shape, random_values(y_shape.count(), 3));
  if (two_addends)
    dy = reference::add(dy, rig.set(spec.dy.second, y_shape, random_values(y_shape.count(), 4)));
  normed.conv.x = rgb;
  const ReferenceConvNorm expected(rig, normed, x);

  unit->forward(Pass::evaluation);
  CHECK(relative_error(rig.get(spec.y, y_shape),
                       reference::max_pool(reference::relu(expected.evaluated(rig, normed)),
                                           activation)) < limit);
  unit->forward(Pass::training);
  const Values a = reference::relu(expected.normed.y);
  CHECK(relative_error(rig.get(spec.y, y_shape), reference::max_pool(a, activation)) < limit);

  unit->backward();
  const auto g = expected.backward(
      reference::relu_backward(reference::max_pool_backward(dy, a, activation), a));
  // rounded, a near tie in a window may go to another element, which moves the sums a little
  check_parameters(rig, normed, g, c.precision == Precision::fp32 ? 2 * limit : 0.1);
}

TEST_CASE("Head matches the naive loops", "[units]") {
  const Case c = GENERATE(from_range(cases()));
  const int classes = GENERATE(7, 1000);
  const double smoothing = GENERATE(0.0, 0.1);
  CAPTURE(name_of(c.backend), name_of(c.precision), classes, smoothing);
  Rig rig(c, layers_with({"layer1.0", {}, std::nullopt}), classes);
  const ActivationShape shape{5, 64, 3, 3};
  const std::vector<std::int32_t> labels{0, 6, -1, 3, 2};

  HeadSpec spec;
  spec.when = {0, 1};
  spec.x_shape = shape;
  spec.classes = classes;
  spec.label_smoothing = static_cast<float>(smoothing);
  spec.weight = rig.table.parameter("fc.weight");
  spec.bias = rig.table.parameter("fc.bias");
  spec.x = rig.activation("x", shape);
  spec.logits = rig.plan.reserve("logits", static_cast<std::size_t>(5 * classes) * 4, 0, 1);
  spec.labels = rig.plan.reserve("labels", 5 * 4, 0, 1);
  spec.dx = rig.activation("dx", shape);
  spec.metrics = static_cast<HeadMetrics*>(rig.metrics.data());
  spec.scalars = static_cast<const StepScalars*>(rig.scalars.data());
  const auto unit = rig.units->head(spec);
  rig.bind(*unit);
  rig.set_weights();
  const Values x = rig.set(spec.x, shape, random_values(shape.count(), 1, -2, 6));
  upload<std::int32_t>(*rig.device, *rig.stream, spec.labels->data(), labels);

  unit->forward(Pass::training);
  unit->forward(Pass::training);  // totals add up, the step's counts do not
  const Values w = rig.weight(spec.weight);
  const Values features = reference::average_pool(x, shape);
  const Values logits = reference::linear(features, w, rig.weight(spec.bias), 5, 64, classes);
  const auto loss = reference::softmax_cross_entropy(logits, labels, classes, smoothing);
  const double limit = tolerance(c.precision);
  CHECK(relative_error(
            download<float>(*rig.device, *rig.stream, spec.logits->data(), logits.size()), logits) <
        limit);
  const auto metrics =
      download<HeadMetrics>(*rig.device, *rig.stream, rig.metrics.data(), 1).front();
  CHECK(metrics.step.samples == 4);
  CHECK(metrics.step.loss_sum == Approx(loss.sum).epsilon(limit));
  CHECK(metrics.step.top1 == loss.top1);
  CHECK(metrics.step.top5 == loss.top5);
  CHECK(metrics.total.samples == 8);
  CHECK(metrics.total.loss_sum == Approx(2 * loss.sum).epsilon(limit));

  unit->backward();
  Values dw(w.size(), 0.0);
  Values db(static_cast<std::size_t>(classes), 0.0);
  Values dfeatures(features.size(), 0.0);
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t k = 0; k < static_cast<std::size_t>(classes); ++k) {
      const double d = loss.dlogits[i * static_cast<std::size_t>(classes) + k];
      db[k] += d;
      for (std::size_t j = 0; j < 64; ++j) {
        dw[k * 64 + j] += d * features[i * 64 + j];
        dfeatures[i * 64 + j] += d * w[k * 64 + j];
      }
    }
  CHECK(relative_error(rig.gradient(spec.weight), dw) < 2 * limit);
  CHECK(relative_error(rig.gradient(spec.bias), db) < 2 * limit);
  CHECK(relative_error(rig.get(spec.dx, shape),
                       reference::average_pool_backward(dfeatures, shape)) < 2 * limit);
}

}  // namespace shakedown
