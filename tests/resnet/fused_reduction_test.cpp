// A reduction over a gradient, unfused and fused with the convolution that computes that gradient
// (resnet/gpu/block_products.cu).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/catch.hpp"
#include "tests/resnet/unit_rig.hpp"

namespace shakedown {
namespace {

using test::layers_with;
using test::random_values;
using test::relative_error;
using test::Second;
using test::UnitCase;
using test::UnitRig;
using test::Values;

/// The place of a NaN.
enum class Poison { none, input, gradient };

/// What a unit and the one after it, whose 1x1 convolution computes the gradient that the unit
/// reads, leave.
struct Chain {
  Fused fused;
  std::vector<Values> results;
};

/// Both units, ready to run.
struct ChainRig : UnitRig {
  using UnitRig::UnitRig;
  std::unique_ptr<NetworkUnit> unit, next;
  Chain chain;

  void ready() {
    bind(*unit);
    next->bind();
    set_weights();
  }
  /// Seeded values, several of which are NaN where `with_nan`: the ReLU's mask may stop one.
  void fill(const Slot* slot, const ActivationShape& shape, std::uint64_t seed,
            bool with_nan = false) {
    auto values = random_values(shape.count(), seed);
    if (with_nan)
      std::fill_n(values.begin() + (values.size() / 2), 8, std::numeric_limits<float>::quiet_NaN());
    set(slot, shape, values);
  }
  void add(const Slot* slot, const ActivationShape& shape) {
    chain.results.push_back(get(slot, shape));
  }
  void forward(Pass pass) {
    unit->forward(pass);
    next->forward(pass);
  }
  void backward() {
    next->backward();
    unit->backward();
    chain.fused = units->fused();
  }
  void add_parameters_of_layer1() {
    for (const Parameter& p : table.parameters())
      if (p.name.starts_with("layer1")) chain.results.push_back(gradient(table.parameter(p.name)));
  }
};

/// The end of a block, and the beginning of the next.
Chain end_of_a_block(UnitCase c, bool projected, Second second, int size, Poison poison) {
  const ConvLayer layer{"layer1.0.conv1", "layer1.0.bn1", 64, 256, 1, 1};
  const ConvLayer next_layer{"layer1.1.conv1", "layer1.1.bn1", 256, 64, 1, 1};
  ResidualBlock block{"layer1.0", {layer}, std::nullopt};
  if (projected) block.shortcut = {"layer1.0.downsample.0", "layer1.0.downsample.1", 64, 256, 1, 1};
  Layers layers = layers_with(block);
  layers.blocks.push_back({"layer1.1", {next_layer}, std::nullopt});
  ChainRig rig(c, layers, 10);
  const ActivationShape x_shape{3, 64, size, size};
  const NormedConv normed = rig.normed(layer, x_shape);
  const ActivationShape y_shape = normed.conv.y();
  const NormedConv next_normed = rig.normed(next_layer, y_shape);
  const ActivationShape next_shape = next_normed.conv.y();
  const ActivationShape input_shape = projected ? x_shape : y_shape;

  std::optional<NormedConv> shortcut;
  if (projected) shortcut = rig.normed(*block.shortcut, input_shape);
  const ConvNormAddSpec spec = rig.conv_norm_add(normed, shortcut, second);
  const ConvNormSpec next{{0, 1},
                          next_normed,
                          spec.y,
                          rig.activation("next y", next_shape),
                          rig.activation("next dy", next_shape),
                          spec.dy.first};
  rig.unit = rig.units->conv_norm_add(spec);
  rig.next = rig.units->conv_norm(next);
  rig.ready();
  rig.fill(spec.x, x_shape, 1, poison == Poison::input);
  rig.fill(spec.shortcut, input_shape, 2);
  rig.fill(spec.dy.second, strided(y_shape, spec.dy.second_stride), 3);
  rig.fill(next.dy, next_shape, 4, poison == Poison::gradient);
  rig.forward(Pass::training);
  rig.backward();
  rig.add(spec.dy.first, y_shape);
  rig.add(spec.dx, x_shape);
  rig.add(spec.dshortcut, input_shape);
  rig.add_parameters_of_layer1();
  return rig.chain;
}

/// A norm within a block, and the block's end.
Chain inner_norm(UnitCase c, int channels, bool projected, int size, Poison poison) {
  const ConvLayer layer{"layer1.0.conv1", "layer1.0.bn1", 64, channels, 1, 1};
  const ConvLayer next_layer{"layer1.0.conv2", "layer1.0.bn2", channels, 4 * channels, 1, 1};
  ResidualBlock block{"layer1.0", {layer, next_layer}, std::nullopt};
  if (projected)
    block.shortcut = {"layer1.0.downsample.0", "layer1.0.downsample.1", 64, 4 * channels, 1, 1};
  ChainRig rig(c, layers_with(block), 10);
  const ActivationShape x_shape{3, 64, size, size};
  const NormedConv normed = rig.normed(layer, x_shape);
  const NormedConv next_normed = rig.normed(next_layer, normed.conv.y());
  const ActivationShape next_shape = next_normed.conv.y();
  const ActivationShape input_shape = projected ? x_shape : next_shape;

  const ConvNormSpec spec = rig.conv_norm(normed);
  std::optional<NormedConv> shortcut;
  if (projected) shortcut = rig.normed(*block.shortcut, input_shape);
  ConvNormAddSpec next = rig.conv_norm_add(next_normed, shortcut, Second::none);
  next.x = spec.y;
  next.dx = spec.dy;
  rig.unit = rig.units->conv_norm(spec);
  rig.next = rig.units->conv_norm_add(next);
  rig.ready();
  rig.fill(spec.x, x_shape, 1, poison == Poison::input);
  // a normalised addend of moderate size does not change their sign: with such a shortcut the
  // roundings before a ReLU do not decide what passes it
  auto far_from_zero = random_values(input_shape.count(), 2);
  for (float& v : far_from_zero) v += v < 0 ? -12.0F : 12.0F;
  rig.set(next.shortcut, input_shape, far_from_zero);
  rig.fill(next.dy.first, next_shape, 3, poison == Poison::gradient);
  for (const Pass pass : {Pass::evaluation, Pass::training}) {
    rig.forward(pass);
    rig.add(next.y, next_shape);
  }
  rig.backward();
  rig.add(spec.dx, x_shape);
  rig.add(next.dshortcut, input_shape);
  rig.add_parameters_of_layer1();
  for (const float* of : {rig.weights.running_mean(next_normed.statistics),
                          rig.weights.running_variance(next_normed.statistics)})
    rig.chain.results.push_back(rig.running(of, next_normed.conv.k));
  return rig.chain;
}

/// The chain that is compared: ends of blocks (kind 0; 1 with projection; 2 and 3 the same with a
/// compact second addend), inner norms of `kind` channels.
Chain run_chain(UnitCase c, int kind, int size, Poison poison = Poison::none) {
  if (kind >= 64) return inner_norm(c, kind, false, size, poison);
  return end_of_a_block(c, kind % 2 == 1, kind < 2 ? Second::whole : Second::compact, size, poison);
}

double fused_tolerance(Precision precision) { return precision == Precision::fp16 ? 3e-3 : 2.5e-2; }

void check_close(const Chain& chain, const Chain& expected, double limit) {
  for (std::size_t i = 0; i < expected.results.size(); ++i) {
    CAPTURE(i);
    CHECK(relative_error(chain.results[i], expected.results[i]) < limit);
  }
}

// They differ by roundings: where the two are one kernel, the product is nowhere rounded alone.
void check_fused(Precision precision, int kind, int size) {
  CAPTURE(name_of(precision), kind, size);
  const Chain unfused = run_chain({BackendKind::gpu, precision, Fusion::none}, kind, size);
  const Chain fused = run_chain({BackendKind::gpu, precision, Fusion::gradients}, kind, size);
  CHECK(unfused.fused.gradients == 0);
  CHECK(fused.fused.gradients == fused.fused.reductions);
  CHECK(fused.fused.reductions == 1);
  check_close(fused, unfused, fused_tolerance(precision));
}

/// A projection's normalised z is near zero somewhere: there a rounding decides what passes the
/// ReLU, and one element of thousands is a hundredth of the gradients' norm.
double gram_tolerance(Precision precision, bool projected) {
  if (!projected) return fused_tolerance(precision);
  return precision == Precision::fp16 ? 3e-2 : 1e-1;
}

void check_gram(Precision precision, int channels, bool projected, int size) {
  CAPTURE(name_of(precision), channels, projected, size);
  const auto run = [&](Fusion fusion) {
    return inner_norm({BackendKind::gpu, precision, fusion}, channels, projected, size,
                      Poison::none);
  };
  const Chain without = run(Fusion::none);
  const Chain through = run(Fusion::gram);
  CHECK(without.fused.gram == 0);
  const std::string model = test::open_device(BackendKind::gpu)->identity().model;
  if (model.find("H100") == std::string::npos && model.find("H200") == std::string::npos) return;
  CHECK(through.fused.gram == 1);
  CHECK(through.fused.gradients == 0);
  CHECK(through.fused.norms == without.fused.norms);
  check_close(through, without, gram_tolerance(precision, projected));
}

}  // namespace

GPU_TEST_CASE("a reduction is the same fused with its convolution", "[units][sanitize]") {
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int kind = GENERATE(0, 1, 2, 3, 64, 128);
  const int size = GENERATE(1, 5);  // 3 rows, some
  check_fused(precision, kind, size);
}

GPU_TEST_CASE("a fused reduction over more rows than all blocks take at once", "[units]") {
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int kind = GENERATE(0, 1, 2, 3, 64, 128);
  check_fused(precision, kind, 61);
}

GPU_TEST_CASE("a norm is the same through the Gram matrix", "[units][sanitize][gram]") {
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int channels = GENERATE(64, 128, 256);
  const bool projected = GENERATE(false, true);
  // 27 rows to 507, the last tile in part. With 3 rows a norm amplifies the rounding of z, which
  // this omits.
  const int size = GENERATE(3, 5, 9, 13);
  check_gram(precision, channels, projected, size);
}

GPU_TEST_CASE("a norm through the Gram matrix of many rows is the same", "[units][gram]") {
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int channels = GENERATE(64, 128, 256);
  check_gram(precision, channels, channels == 64, 96);
}

GPU_TEST_CASE("a NaN goes through a fused reduction as through an unfused one", "[units][nan]") {
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int kind = GENERATE(0, 1, 2, 3, 64, 128);
  const Poison poison = GENERATE(Poison::input, Poison::gradient);
  const Fusion fusion = GENERATE(Fusion::gradients, Fusion::gram);
  if (fusion == Fusion::gram && kind < 64) return;  // it is of the inner norms
  CAPTURE(name_of(precision), kind, static_cast<int>(poison), static_cast<int>(fusion));
  const Chain unfused = run_chain({BackendKind::gpu, precision, Fusion::none}, kind, 5, poison);
  const Chain fused = run_chain({BackendKind::gpu, precision, fusion}, kind, 5, poison);
  const auto is_nan = [](double v) { return std::isnan(v); };
  bool reached = false;
  for (std::size_t i = 0; i < unfused.results.size(); ++i) {
    CAPTURE(i);
    const Values& expected = unfused.results[i];
    reached = reached || std::any_of(expected.begin(), expected.end(), is_nan);
    CHECK(std::equal(expected.begin(), expected.end(), fused.results[i].begin(),
                     [&](double a, double b) { return is_nan(a) == is_nan(b); }));
  }
  CHECK(reached);
}

GPU_TEST_CASE("timing candidates for fusion leaves no trace in the results", "[units][sanitize]") {
  const int kind = GENERATE(0, 1, 2, 3, 64, 128);
  CAPTURE(kind);
  const Chain timed =
      run_chain({BackendKind::gpu, Precision::fp16, Fusion::automatic, true}, kind, 5);
  CHECK(timed.fused.reductions == 1);
  CHECK(timed.fused.gram == 0);  // z stays in the L2 cache
  // Timing may fuse statistics, too, which rounds otherwise (0.005 seen on H200); what timing
  // could leave in the gradients is of the order of 1.
  check_close(timed, run_chain({BackendKind::gpu, Precision::fp16, Fusion::none}, kind, 5), 2e-2);
}

}  // namespace shakedown
