// Units of one network with their weights, inputs and outputs on a device, for tests.
#pragma once

#include "resnet/units.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support.hpp"

namespace shakedown::test {

using reference::Values;

struct UnitCase {
  BackendKind backend;
  Precision precision;
  Fusion fusion = Fusion::none;
  bool autotune = false;
};

/// Every backend and precision, and convolutions that take their norm's sums.
inline std::vector<UnitCase> unit_cases() {
  std::vector<UnitCase> list;
  for (BackendKind kind : backends()) {
    list.push_back({kind, Precision::fp32});
    if (kind != BackendKind::gpu) continue;
    for (Precision p : {Precision::tf32, Precision::fp16, Precision::bf16})
      list.push_back({kind, p});
    list.push_back({kind, Precision::fp16, Fusion::statistics});
    for (Precision p : {Precision::fp16, Precision::bf16}) list.push_back({kind, p, Fusion::stem});
  }
  return list;
}

/// The second addend of a gradient.
enum class Second { none, whole, compact };

/// A whole tensor from its every stride-th row and column; zero between.
inline Values expanded(const Values& compact, const ActivationShape& whole, int stride) {
  const ActivationShape from = strided(whole, stride);
  Values values(whole.count(), 0.0);
  for (int plane = 0; plane < from.n * from.c; ++plane)
    for (int h = 0; h < from.h; ++h)
      for (int w = 0; w < from.w; ++w)
        values[(plane * whole.h + stride * h) * whole.w + stride * w] =
            compact[(plane * from.h + h) * from.w + w];
  return values;
}

class UnitRig : public DeviceRig {
 public:
  UnitRig(UnitCase c, Layers layers, int classes)
      : DeviceRig(c.backend),
        stem_channels(shakedown::stem_channels(c.backend)),
        table(layers, classes, stem_channels),
        weights(*device, *stream, table, compute_type(c.precision)),
        loss_scale(*device, sizeof(float)),
        metrics(*device, sizeof(HeadMetrics)),
        log(*device, *stream) {
    Tuning tuning;
    tuning.autotune = c.autotune;
    tuning.fusion = c.fusion;
    const UnitContext context{*device, *stream, c.precision, table, weights, plan, log, tuning};
    units = c.backend == BackendKind::gpu ? gpu::make_units(context) : cpu::make_units(context);
    const float unscaled = 1;
    upload<float>(*device, *stream, loss_scale.data(), std::span(&unscaled, 1));
    device->zero(metrics.data(), metrics.bytes(), *stream);
  }

  const Slot* activation(const char* name, const ActivationShape& shape) {
    return plan.reserve(name, shape.count() * size_of(weights.type()), 0, 1);
  }

  NormedConv normed(const ConvLayer& layer, const ActivationShape& x) const {
    return {layer.on(x), table.parameter(layer.conv + ".weight"),
            table.parameter(layer.norm + ".weight"), table.parameter(layer.norm + ".bias"),
            table.statistic(layer.norm)};
  }

  ConvNormSpec conv_norm(const NormedConv& normed) {
    const ActivationShape& x = normed.conv.x;
    const ActivationShape y = normed.conv.y();
    return {{0, 1},
            normed,
            activation("x", x),
            activation("y", y),
            activation("dy", y),
            activation("dx", x)};
  }
  /// The end of a block whose shortcut is a projection or the identity. A compact gradient has only
  /// the pixels that a strided shortcut reads: the second addend, of stride 2, and the
  /// projection's.
  ConvNormAddSpec conv_norm_add(const NormedConv& normed, const std::optional<NormedConv>& shortcut,
                                Second second) {
    const ActivationShape y = normed.conv.y();
    const ActivationShape input = shortcut ? shortcut->conv.x : y;
    ConvNormAddSpec spec;
    spec.when = {0, 1};
    spec.layer = normed;
    spec.x = activation("x", normed.conv.x);
    spec.shortcut = activation("input", input);
    spec.shortcut_layer = shortcut;
    spec.y = activation("y", y);
    spec.dy.first = activation("dy a", y);
    if (second == Second::compact) spec.dy.second_stride = 2;
    if (second != Second::none)
      spec.dy.second = activation("dy b", strided(y, spec.dy.second_stride));
    spec.dx = activation("dx", normed.conv.x);
    if (second == Second::compact && shortcut) spec.dshortcut_stride = shortcut->conv.stride;
    spec.dshortcut =
        shortcut ? activation("dshortcut", strided(input, spec.dshortcut_stride)) : spec.dy.first;
    return spec;
  }

  /// Gives the plan its memory, poisoned so that what a unit forgets to write shows.
  void bind(NetworkUnit& unit) {
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
    const Buffer wide = of(dirt);
    device->kernels().convert(wide.view(DataType::float32), weights.gradients(), *stream);
    stream->synchronize();
  }

  /// The weight as the convolutions use it: rounded to the compute type.
  Values weight(int index) {
    Buffer wide(*device, table.stored_count() * sizeof(float));
    const bool conv = table.parameters()[index].kind == ParameterKind::conv_weight ||
                      table.parameters()[index].kind == ParameterKind::linear_weight;
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
    std::vector<float> stored(shape.count());
    for (std::size_t i = 0; i < stored.size(); ++i) stored[place_of(i, shape)] = values[i];
    const Buffer wide = of(stored);
    device->kernels().convert(wide.view(DataType::float32), view_of(slot, shape), *stream);
    return get(slot, shape);
  }
  Values get(const Slot* slot, const ActivationShape& shape) {
    const Buffer wide(*device, shape.count() * sizeof(float));
    device->kernels().convert(view_of(slot, shape), wide.view(DataType::float32), *stream);
    const auto stored = download<float>(*device, *stream, wide.data(), shape.count());
    Values values(stored.size());
    for (std::size_t i = 0; i < stored.size(); ++i) values[i] = stored[place_of(i, shape)];
    return values;
  }

  int stem_channels;
  ParameterTable table;
  Weights weights;
  Buffer loss_scale;
  Buffer metrics;
  Recorder log;
  MemoryPlan plan;
  std::unique_ptr<UnitFactory> units;
  Buffer arena;

 private:
  View view_of(const Slot* slot, const ActivationShape& shape) const {
    return {slot->data(), shape.count(), weights.type(), Place::device};
  }
  /// Where element i of N C H W is stored.
  std::size_t place_of(std::size_t i, const ActivationShape& shape) const {
    const auto lanes = static_cast<std::size_t>(units->lanes(shape));
    const std::size_t pixels = shape.count() / static_cast<std::size_t>(shape.n * shape.c);
    const std::size_t plane = i / pixels;
    return (plane / lanes * pixels + i % pixels) * lanes + plane % lanes;
  }
  Values unpacked(const Buffer& wide, int index) {
    const Parameter& p = table.parameters()[index];
    const auto flat = download<float>(*device, *stream, wide.data(), table.stored_count());
    std::vector<float> values(p.count);
    units->unpack_parameter(p, std::span(flat).subspan(p.offset, p.stored), values);
    return widen(values);
  }
};

inline Layers layers_with(ResidualBlock block, int features = 64) {
  Layers layers;
  layers.stem = {"conv1", "bn1", 3, 64, 7, 2};
  layers.blocks.push_back(std::move(block));
  layers.features = features;
  return layers;
}

/// A 64 -> 128 convolution and its norm, ready to run.
struct ConvNormRig : UnitRig {
  ConvNormRig(UnitCase c, int kernel, int stride, const ActivationShape& x)
      : UnitRig(c, layers_with({"layer1.0", {layer(kernel, stride)}, std::nullopt}), 10),
        x_shape(x),
        conv(normed(layer(kernel, stride), x)),
        y_shape(conv.conv.y()),
        spec(conv_norm(conv)),
        unit(units->conv_norm(spec)) {
    bind(*unit);
    set_weights();
  }
  static ConvLayer layer(int kernel, int stride) {
    return {"layer1.0.conv1", "layer1.0.bn1", 64, 128, kernel, stride};
  }

  ActivationShape x_shape;
  NormedConv conv;
  ActivationShape y_shape;
  ConvNormSpec spec;
  std::unique_ptr<NetworkUnit> unit;
};

/// The end of a block: 64 -> 128 from a tensor of its own, and the block's input, which a shortcut
/// of this stride may project.
struct ConvNormAddRig : UnitRig {
  ConvNormAddRig(UnitCase c, bool projected, int stride, Second second, const ActivationShape& x)
      : UnitRig(c, layers_with(block(projected, stride)), 10),
        x_shape(x),
        conv(normed(ConvNormRig::layer(1, 1), x)),
        y_shape(conv.conv.y()),
        input_shape(projected
                        ? ActivationShape{x.n, 64, stride * (x.h - 1) + 1, stride * (x.w - 1) + 1}
                        : y_shape) {
    std::optional<NormedConv> shortcut;
    if (projected) shortcut = normed(*block(true, stride).shortcut, input_shape);
    spec = conv_norm_add(conv, shortcut, second);
    unit = units->conv_norm_add(spec);
    bind(*unit);
    set_weights();
  }
  static ResidualBlock block(bool projected, int stride) {
    ResidualBlock made{"layer1.0", {ConvNormRig::layer(1, 1)}, std::nullopt};
    if (projected)
      made.shortcut = {"layer1.0.downsample.0", "layer1.0.downsample.1", 64, 128, 1, stride};
    return made;
  }

  ActivationShape x_shape;
  NormedConv conv;
  ActivationShape y_shape, input_shape;
  ConvNormAddSpec spec;
  std::unique_ptr<NetworkUnit> unit;
};

struct StemRig : UnitRig {
  StemRig(UnitCase c, bool two_addends, int images, int size)
      : UnitRig(c, layers_with({"layer1.0", {}, std::nullopt}), 10),
        image{images, stem_channels, size, size},
        conv(normed({"conv1", "bn1", 3, 64, 7, 2}, image)),
        y_shape(pooled(conv.conv.y())),
        spec{{0, 1}, conv, activation("x", image), activation("y", y_shape), {}} {
    spec.dy.first = activation("dy a", y_shape);
    if (two_addends) spec.dy.second = activation("dy b", y_shape);
    unit = units->stem(spec);
    bind(*unit);
    set_weights();
  }
  /// Every other filter's: there the largest value comes from the smallest input.
  void negate_gamma() {
    auto gamma = random_values(64, 9, 0.5, 1.5);
    for (std::size_t k = 1; k < gamma.size(); k += 2) gamma[k] = -gamma[k];
    upload<float>(*device, *stream, weights.vector(conv.gamma), gamma);
  }
  /// Pixels from these values, with zeros in the channels that only pad.
  void set_image(std::vector<float> x) {
    const auto plane = static_cast<std::size_t>(image.h) * static_cast<std::size_t>(image.w);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (i / plane % static_cast<std::size_t>(stem_channels) >= 3) x[i] = 0;
    set(spec.x, image, x);
  }

  ActivationShape image;
  NormedConv conv;
  ActivationShape y_shape;
  StemSpec spec;
  std::unique_ptr<NetworkUnit> unit;
};

struct HeadRig : UnitRig {
  HeadRig(UnitCase c, int classes, const ActivationShape& x, double smoothing = 0)
      : UnitRig(c, layers_with({"layer1.0", {}, std::nullopt}), classes), shape(x) {
    const auto samples = static_cast<std::size_t>(x.n);
    spec.when = {0, 1};
    spec.x_shape = shape;
    spec.classes = classes;
    spec.label_smoothing = static_cast<float>(smoothing);
    spec.weight = table.parameter("fc.weight");
    spec.bias = table.parameter("fc.bias");
    spec.x = activation("x", shape);
    spec.logits =
        plan.reserve("logits", samples * static_cast<std::size_t>(classes) * sizeof(float), 0, 1);
    spec.labels = plan.reserve("labels", samples * sizeof(std::int32_t), 0, 1);
    spec.dx = activation("dx", shape);
    spec.metrics = static_cast<HeadMetrics*>(metrics.data());
    spec.loss_scale = static_cast<const float*>(loss_scale.data());
    unit = units->head(spec);
    bind(*unit);
    set_weights();
  }
  HeadMetrics read_metrics() {
    return download<HeadMetrics>(*device, *stream, metrics.data(), 1).front();
  }

  ActivationShape shape;
  HeadSpec spec;
  std::unique_ptr<NetworkUnit> unit;
};

}  // namespace shakedown::test
