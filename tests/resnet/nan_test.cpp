// A NaN in an input, a weight, a running variance or a gradient reaches whatever PyTorch lets it
// reach: a faulty GPU must not show a plausible loss.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "tests/catch.hpp"
#include "tests/resnet/unit_rig.hpp"

namespace shakedown {
namespace {

using test::random_values;
using test::unit_cases;
using test::UnitCase;
using test::UnitRig;
using test::Values;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::size_t nans(const Values& values) {
  return static_cast<std::size_t>(
      std::count_if(values.begin(), values.end(), [](double v) { return std::isnan(v); }));
}

/// random_values with a NaN at `place`.
std::vector<float> with_nan(std::size_t count, std::uint64_t seed, std::size_t place) {
  auto values = random_values(count, seed);
  values.at(place) = kNan;
  return values;
}

/// The first element that is positive, or is not.
std::size_t first(const Values& values, bool positive) {
  const auto found =
      std::find_if(values.begin(), values.end(), [&](double v) { return (v > 0) == positive; });
  REQUIRE(found != values.end());
  return static_cast<std::size_t>(found - values.begin());
}

/// As one addend or, where there are two, the second.
void set_gradient(UnitRig& rig, const Addends& dy, const ActivationShape& shape,
                  const std::vector<float>& values) {
  if (dy.second != nullptr) rig.set(dy.second, shape, values);
  rig.set(dy.first, shape, dy.second != nullptr ? std::vector<float>(values.size(), 0) : values);
}

/// One float of device memory.
void set_float(UnitRig& rig, float* at, float value) {
  upload<float>(*rig.device, *rig.stream, at, std::span(&value, 1));
  rig.stream->synchronize();
}

constexpr std::size_t kChannels = 128;  // of a 1x1 convolution's output

/// A 1x1 convolution of 64 channels into 128, whose NaNs are easy to count.
struct ConvNormRig : test::ConvNormRig {
  explicit ConvNormRig(UnitCase c) : test::ConvNormRig(c, 1, 1, {2, 64, 6, 6}) {}

  Values forward(Pass pass, const std::vector<float>& x) {
    set(spec.x, x_shape, x);
    unit->forward(pass);
    return get(spec.y, y_shape);
  }
};

}  // namespace

TEST_CASE("a NaN goes through ConvNorm", "[units][nan][sanitize]") {
  const UnitCase c = GENERATE(from_range(unit_cases()));
  CAPTURE(name_of(c.backend), name_of(c.precision));
  ConvNormRig r(c);
  const std::size_t count = r.x_shape.count();
  const std::size_t pixels = r.y_shape.count() / kChannels;

  SECTION("from the input") {
    CHECK(nans(r.forward(Pass::evaluation, with_nan(count, 1, 7))) == kChannels);
    const Values y = r.forward(Pass::training, with_nan(count, 1, 7));
    CHECK(nans(y) == y.size());
    r.set(r.spec.dy, r.y_shape, random_values(r.y_shape.count(), 2));
    r.unit->backward();
    CHECK(nans(r.gradient(r.conv.weight)) > 0);
    CHECK(nans(r.gradient(r.conv.gamma)) == kChannels);
  }
  SECTION("from the norm's weight") {
    set_float(r, r.weights.vector(r.conv.gamma) + 3, kNan);
    CHECK(nans(r.forward(Pass::evaluation, random_values(count, 1))) == pixels);
    CHECK(nans(r.forward(Pass::training, random_values(count, 1))) == pixels);
  }
  SECTION("from a negative running variance") {
    set_float(r, r.weights.running_variance(r.conv.statistics) + 3, -1.0F);
    CHECK(nans(r.forward(Pass::evaluation, random_values(count, 1))) == pixels);
  }
  SECTION("from the gradient, where the ReLU passes it") {
    const Values y = r.forward(Pass::training, random_values(count, 1));
    const std::size_t dy_count = r.y_shape.count();
    r.set(r.spec.dy, r.y_shape, with_nan(dy_count, 2, first(y, false)));
    r.unit->backward();
    CHECK(nans(r.gradient(r.conv.weight)) == 0);
    r.set(r.spec.dy, r.y_shape, with_nan(dy_count, 2, first(y, true)));
    r.unit->backward();
    CHECK(nans(r.gradient(r.conv.weight)) == 64);  // of one filter
    CHECK(nans(r.gradient(r.conv.gamma)) == 1);
    CHECK(nans(r.gradient(r.conv.beta)) == 1);
    CHECK(nans(r.get(r.spec.dx, r.x_shape)) == count);
  }
}

TEST_CASE("a NaN goes through ConvNormAdd", "[units][nan][sanitize]") {
  const UnitCase c = GENERATE(from_range(unit_cases()));
  const bool projected = GENERATE(false, true);
  const bool two_addends = GENERATE(false, true);
  CAPTURE(name_of(c.backend), name_of(c.precision), projected, two_addends);
  test::ConvNormAddRig rig(c, projected, 1, two_addends ? test::Second::whole : test::Second::none,
                           {2, 64, 6, 6});
  const auto& [x_shape, normed, y_shape, input_shape, spec] =
      std::tie(rig.x_shape, rig.conv, rig.y_shape, rig.input_shape, rig.spec);
  const auto& unit = rig.unit;
  const auto x = random_values(x_shape.count(), 1);
  const auto input = random_values(input_shape.count(), 2);
  const auto forward = [&](Pass pass, const std::vector<float>& from_x,
                           const std::vector<float>& from_input) {
    rig.set(rig.spec.x, rig.x_shape, from_x);
    rig.set(rig.spec.shortcut, rig.input_shape, from_input);
    unit->forward(pass);
    return rig.get(rig.spec.y, rig.y_shape);
  };

  CHECK(nans(forward(Pass::evaluation, with_nan(x.size(), 1, 7), input)) == 128);
  CHECK(nans(forward(Pass::training, with_nan(x.size(), 1, 7), input)) == y_shape.count());
  const Values from_input = forward(Pass::training, x, with_nan(input.size(), 2, 7));
  CHECK(nans(from_input) == (projected ? y_shape.count() : 1));
  set_gradient(rig, spec.dy, y_shape, random_values(y_shape.count(), 3));
  unit->backward();
  CHECK(nans(rig.gradient(normed.weight)) == 0);  // the main path and dy are finite
  if (projected) CHECK(nans(rig.gradient(spec.shortcut_layer->weight)) > 0);

  const Values y = forward(Pass::training, x, input);
  set_gradient(rig, spec.dy, y_shape, with_nan(y_shape.count(), 3, first(y, false)));
  unit->backward();
  CHECK(nans(rig.gradient(normed.weight)) == 0);
  set_gradient(rig, spec.dy, y_shape, with_nan(y_shape.count(), 3, first(y, true)));
  unit->backward();
  CHECK(nans(rig.gradient(normed.weight)) == 64);
  CHECK(nans(rig.get(spec.dx, x_shape)) == x_shape.count());
  CHECK(nans(rig.get(spec.dshortcut, input_shape)) == (projected ? input_shape.count() : 1));
}

TEST_CASE("a NaN goes through the stem's ReLU and max-pool", "[units][nan][sanitize]") {
  const UnitCase c = GENERATE(from_range(unit_cases()));
  const bool two_addends = GENERATE(false, true);
  CAPTURE(name_of(c.backend), name_of(c.precision), two_addends);
  test::StemRig rig(c, two_addends, 2, 32);
  const auto& [image, normed, y_shape, spec] = std::tie(rig.image, rig.conv, rig.y_shape, rig.spec);
  const auto& unit = rig.unit;
  rig.negate_gamma();
  const auto forward = [&](Pass pass, const std::vector<float>& x) {
    rig.set_image(x);
    unit->forward(pass);
    return rig.get(rig.spec.y, rig.y_shape);
  };

  const std::vector<std::uint8_t> pixels(2 * 32 * 32 * 3, 200);
  const Buffer bytes = rig.of(pixels);
  rig.units->normalise_images(static_cast<const std::uint8_t*>(bytes.data()), image, *spec.x);
  unit->forward(Pass::evaluation);
  CHECK(nans(rig.get(spec.y, y_shape)) == 0);

  // pixel (16, 16) is in the 4 x 4 outputs 7..10 of the convolution, which are in the 3 x 3 windows
  // 4..5, of which it leaves out none
  const std::size_t middle = 16 * 32 + 16;
  const Values evaluated = forward(Pass::evaluation, with_nan(image.count(), 1, middle));
  CHECK(nans(evaluated) % 64 == 0);
  CHECK(nans(evaluated) / 64 >= 4);
  CHECK(nans(evaluated) / 64 <= 9);
  CHECK(nans(forward(Pass::training, with_nan(image.count(), 1, middle))) == y_shape.count());
  set_gradient(rig, spec.dy, y_shape, random_values(y_shape.count(), 3));
  unit->backward();
  CHECK(nans(rig.gradient(normed.gamma)) == 64);

  const Values y = forward(Pass::training, random_values(image.count(), 1));
  CHECK(nans(y) == 0);
  set_gradient(rig, spec.dy, y_shape, with_nan(y_shape.count(), 3, first(y, false)));
  unit->backward();
  CHECK(nans(rig.gradient(normed.weight)) == 0);
  set_gradient(rig, spec.dy, y_shape, with_nan(y_shape.count(), 3, first(y, true)));
  unit->backward();
  CHECK(nans(rig.gradient(normed.weight)) == 3 * 49);
  CHECK(nans(rig.gradient(normed.beta)) == 1);
}

TEST_CASE("a NaN goes through the head into the loss", "[units][nan][sanitize]") {
  const UnitCase c = GENERATE(from_range(unit_cases()));
  CAPTURE(name_of(c.backend), name_of(c.precision));
  constexpr int kClasses = 7;
  const ActivationShape shape{3, 64, 3, 3};
  test::HeadRig rig(c, kClasses, shape);
  const HeadSpec& spec = rig.spec;
  const auto& unit = rig.unit;
  upload<std::int32_t>(*rig.device, *rig.stream, spec.labels->data(), std::vector{0, 6, 2});
  const auto loss = [&](const std::vector<float>& x) {
    rig.set(spec.x, shape, x);
    unit->forward(Pass::training);
    unit->backward();
    return rig.read_metrics().step.loss_sum;
  };
  CHECK(std::isfinite(loss(random_values(shape.count(), 1))));
  CHECK(std::isnan(loss(with_nan(shape.count(), 1, shape.count() / 2))));
  CHECK(nans(rig.gradient(spec.weight)) > 0);
  CHECK(nans(rig.gradient(spec.bias)) == kClasses);
  CHECK(nans(rig.get(spec.dx, shape)) == 64 * 3 * 3);  // of its own sample
  set_float(rig, rig.weights.vector(spec.bias) + 3, kNan);
  CHECK(std::isnan(loss(random_values(shape.count(), 1))));
}

}  // namespace shakedown
