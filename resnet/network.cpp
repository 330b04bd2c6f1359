#include "resnet/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/ensure.hpp"
#include "common/hash.hpp"
#include "common/usage_error.hpp"

namespace shakedown {

Network::Network(const NetworkSettings& settings, Device& device, Stream& stream,
                 const float* loss_scale)
    : settings_(settings),
      device_(device),
      stream_(stream),
      loss_scale_(loss_scale),
      layers_(layers_of(settings.architecture)),
      table_(layers_, settings.classes, stem_channels(device.kind())),
      weights_(device, stream, table_, compute_type(settings.precision)),
      recorder_(device, stream),
      metrics_(device, sizeof(HeadMetrics)) {
  const UnitContext context{device_,  stream_, settings_.precision, table_,
                            weights_, plan_,   recorder_,           settings_.tuning};
  units_ = device.kind() == BackendKind::gpu ? gpu::make_units(context) : cpu::make_units(context);
  if (settings.recompute && !units_->rebuilds())
    throw UsageError(
        fmt::format("--recompute is not supported by the {} backend", name_of(device.kind())));
  device_.zero(metrics_.data(), metrics_.bytes(), stream_);
  build_units();
  plan_.place();
}

// one value has no variance
void Network::check_statistics(const ActivationShape& y) const {
  if (std::int64_t{y.n} * y.h * y.w < 2)
    throw UsageError(
        fmt::format("--batch-size {}, --image-size {}: batch normalisation needs more "
                    "than the one value per channel that is left after the last block",
                    settings_.batch_size, settings_.image_size));
}

Network::~Network() = default;

ActivationShape Network::image_shape() const {
  return {settings_.batch_size, stem_channels(device_.kind()), settings_.image_size,
          settings_.image_size};
}

NormedConv Network::normed(const ConvLayer& layer, const ActivationShape& x) const {
  NormedConv made;
  made.conv = layer.on(x);
  made.weight = table_.parameter(layer.conv + ".weight");
  made.gamma = table_.parameter(layer.norm + ".weight");
  made.beta = table_.parameter(layer.norm + ".bias");
  made.statistics = table_.statistic(layer.norm);
  return made;
}

/// Lays the units on the plan's time axis: unit u runs forward at moment u and backward at
/// 2 * count - 1 - u. An output lives from its unit's forward to its unit's backward pass, a
/// gradient from the backward pass that makes it to the one that reads it.
struct Network::Build {
  /// Between two blocks: a block's input, and the gradients that come back for it.
  struct Border {
    int producer = 0;  // the unit that makes the input
    ActivationShape shape;
    Addends dx{};  // through the path and through the shortcut
  };

  Network& net;
  std::vector<Border> borders;  // before each residual block, and before the head
  int count;                    // of units

  explicit Build(Network& network) : net(network) {
    borders.push_back({0, pooled(net.layers_.stem.on(net.image_shape()).y())});
    for (const ResidualBlock& block : net.layers_.blocks) {
      ActivationShape shape = borders.back().shape;
      for (const ConvLayer& layer : block.path) shape = layer.on(shape).y();
      borders.push_back({borders.back().producer + static_cast<int>(block.path.size()), shape});
    }
    count = borders.back().producer + 2;
  }

  Moments moments(int unit) const { return {unit, 2 * count - 1 - unit}; }

  const Slot* reserve(const std::string& name, const ActivationShape& shape, int first, int last) {
    return net.plan_.reserve(name, net.activation_bytes(shape), first, last);
  }
  const Slot* output(const std::string& name, const ActivationShape& shape, int unit) {
    return reserve(name, shape, moments(unit).forward, moments(unit).backward);
  }
  /// Read by the next unit alone, which finds it elsewhere in its backward pass.
  const Slot* passing_output(const std::string& name, const ActivationShape& shape, int unit) {
    return reserve(name, shape, moments(unit).forward, moments(unit + 1).forward);
  }
  const Slot* rebuilt_output(const std::string& name, const ActivationShape& shape, int unit) {
    const int moment = moments(unit + 1).backward;
    return reserve(name + " rebuilt", shape, moment, moment);
  }
  /// Made by unit `from` in its backward pass, read by unit `to` in its own.
  const Slot* gradient(const std::string& name, const ActivationShape& shape, int from, int to) {
    return reserve(name, shape, moments(from).backward, moments(to).backward);
  }

  /// Gradients of border b. An identity passes on the gradient of its block's output: that lives
  /// until the unit before the block has read it.
  void reserve_gradients(std::size_t b) {
    const auto& blocks = net.layers_.blocks;
    Border& in = borders[b];
    if (in.dx.first == nullptr)
      in.dx.first = gradient((b < blocks.size() ? blocks[b].name : "head") + " dx", in.shape,
                             in.producer + 1, in.producer);
    if (b == blocks.size()) return;
    Border& out = borders[b + 1];
    if (blocks[b].shortcut) {
      if (net.units_->compacts_gradients()) in.dx.second_stride = blocks[b].shortcut->stride;
      in.dx.second = gradient(blocks[b].name + " dshortcut", strided(in.shape, in.dx.second_stride),
                              out.producer, in.producer);
    } else {
      in.dx.second = out.dx.first =
          gradient(blocks[b].name + " dy", in.shape, out.producer + 1, in.producer);
    }
  }

  /// The units of block b, and the gradients of the border after it. Returns its output.
  const Slot* add_block(std::size_t b, const Slot* input) {
    const ResidualBlock& block = net.layers_.blocks[b];
    const Border& in = borders[b];
    const Border& out = borders[b + 1];
    auto& units = net.blocks_.emplace_back();
    ActivationShape shape = in.shape;
    const Slot* x = input;
    const Slot* dx = in.dx.first;
    const Slot* rebuilt_x = nullptr;
    for (int unit = in.producer + 1; unit < out.producer; ++unit) {
      const ConvLayer& conv = block.path[static_cast<std::size_t>(unit - in.producer - 1)];
      const NormedConv layer = net.normed(conv, shape);
      shape = layer.conv.y();
      const bool rebuilds = net.settings_.recompute;
      const Slot* y =
          rebuilds ? passing_output(conv.norm, shape, unit) : output(conv.norm, shape, unit);
      const Slot* rebuilt_y = rebuilds ? rebuilt_output(conv.norm, shape, unit) : nullptr;
      const Slot* dy = gradient(conv.norm + " dy", shape, unit + 1, unit);
      units.push_back(
          net.units_->conv_norm({moments(unit), layer, x, y, dy, dx, rebuilt_x, rebuilt_y}));
      x = y;
      dx = dy;
      rebuilt_x = rebuilt_y;
    }
    const Slot* y = output(block.path.back().norm, out.shape, out.producer);
    reserve_gradients(b + 1);
    ConvNormAddSpec last{.when = moments(out.producer),
                         .layer = net.normed(block.path.back(), shape),
                         .x = x,
                         .shortcut = input,
                         .shortcut_layer = std::nullopt,
                         .y = y,
                         .dy = out.dx,
                         .dx = dx,
                         .dshortcut = in.dx.second,
                         .dshortcut_stride = in.dx.second_stride,
                         .rebuilt_x = rebuilt_x};
    if (block.shortcut) last.shortcut_layer = net.normed(*block.shortcut, in.shape);
    units.push_back(net.units_->conv_norm_add(last));
    return y;
  }
};

void Network::build_units() {
  Build build(*this);
  const int end = 2 * build.count;
  const auto n = static_cast<std::size_t>(settings_.batch_size);
  input_ = plan_.reserve("image", activation_bytes(image_shape()), 0, end);
  labels_ = plan_.reserve("labels", n * sizeof(std::int32_t), 0, end);
  logits_ = plan_.reserve("logits", n * static_cast<std::size_t>(settings_.classes) * sizeof(float),
                          0, end);

  const Build::Border& stem = build.borders.front();
  const Slot* x = build.output("stem", stem.shape, stem.producer);
  build.reserve_gradients(0);
  blocks_.emplace_back().push_back(units_->stem(
      {build.moments(stem.producer), normed(layers_.stem, image_shape()), input_, x, stem.dx}));

  for (std::size_t b = 0; b < layers_.blocks.size(); ++b) x = build.add_block(b, x);

  const Build::Border& head = build.borders.back();
  check_statistics(head.shape);
  blocks_.emplace_back().push_back(units_->head(
      {build.moments(head.producer + 1), head.shape, settings_.classes, settings_.label_smoothing,
       table_.parameter("fc.weight"), table_.parameter("fc.bias"), x, logits_, labels_,
       head.dx.first, static_cast<HeadMetrics*>(metrics_.data()), loss_scale_}));
  ENSURE(blocks() == table_.blocks(), "blocks of the network and of the table");
}

void Network::allocate() {
  arena_ = Buffer(device_, plan_.bytes());
  plan_.bind(arena_.data());
  bind();
}

void Network::bind() {
  for (auto& block : blocks_)
    for (auto& unit : block) unit->bind();
  units_->bound();
}

void Network::set_layout(const WeightsLayout& layout) {
  if (layout == weights_.layout()) return;
  weights_.set_layout(layout);
  if (arena_.bytes() > 0) bind();
}

void Network::forward(int block, Pass pass) {
  recorder_.begin(Phase::forward);
  for (auto& unit : blocks_.at(static_cast<std::size_t>(block))) unit->forward(pass);
}

void Network::backward(int block) {
  auto& units = blocks_.at(static_cast<std::size_t>(block));
  recorder_.begin(Phase::backward);
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    if (const auto before = std::next(unit); before != units.rend()) (*before)->rebuild();
    (*unit)->backward();
  }
}

void Network::set_batch(const std::uint8_t* images, const std::int32_t* labels) {
  const ActivationShape shape = image_shape();
  recorder_.begin(Phase::input);
  const auto pixels = 3 * shape.count() / static_cast<std::size_t>(shape.c);  // a byte each
  recorder_.run({"normalise_images", -1, static_cast<double>(pixels + input_->bytes())},
                [&] { units_->normalise_images(images, shape, *input_); });
  device_.copy(labels_->data(), labels, labels_->bytes(), stream_);
}

std::array<View, 2> Network::batch() const {
  return {View(input_->data(), input_->bytes(), DataType::uint8, Place::device),
          View(labels_->data(), labels_->bytes() / sizeof(std::int32_t), DataType::int32,
               Place::device)};
}

ConstView Network::logits() const {
  const auto count =
      static_cast<std::size_t>(settings_.batch_size) * static_cast<std::size_t>(settings_.classes);
  return {logits_->data(), count, DataType::float32, Place::device};
}

void Network::zero_total_metrics() {
  auto* metrics = static_cast<HeadMetrics*>(metrics_.data());
  device_.zero(&metrics->total, sizeof(Metrics), stream_);
}

HeadMetrics Network::read_metrics() {
  return download<HeadMetrics>(device_, stream_, metrics_.data(), 1).front();
}

void Network::set_total_metrics(const Metrics& total) {
  auto* metrics = static_cast<HeadMetrics*>(metrics_.data());
  upload<Metrics>(device_, stream_, &metrics->total, std::span(&total, 1));
}

FlopCount flop_per_image(const Layers& layers, int image_size, int classes) {
  FlopCount count;
  auto add = [&](const ConvLayer& layer, const ActivationShape& x) {
    const ConvShape conv = layer.on(x);
    count.forward += conv.flop();
    count.training += 3 * conv.flop();
    return conv.y();
  };
  const ActivationShape stem = add(layers.stem, {1, 3, image_size, image_size});
  count.training -= count.forward;  // no gradient of the image
  ActivationShape x = pooled(stem);
  for (const ResidualBlock& block : layers.blocks) {
    if (block.shortcut) add(*block.shortcut, x);
    for (const ConvLayer& layer : block.path) x = add(layer, x);
  }
  const double linear = 2.0 * layers.features * classes;
  count.forward += linear;
  count.training += 3 * linear;
  return count;
}

}  // namespace shakedown
