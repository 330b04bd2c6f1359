// Every unit, forward and backward, against the naive loops, on every backend and precision.
#include <tuple>

#include "resnet/units.hpp"
#include "tests/catch.hpp"
#include "tests/reference/reference.hpp"
#include "tests/resnet/unit_rig.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

using reference::Values;
using test::random_values;
using test::relative_error;
using test::widen;
using Case = test::UnitCase;
using Rig = test::UnitRig;

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
  const Case c = GENERATE(from_range(test::unit_cases()));
  const int kernel = GENERATE(1, 3);
  const int stride = GENERATE(1, 2);
  const int size = GENERATE(7, 10);
  CAPTURE(name_of(c.backend), name_of(c.precision), kernel, stride, size);
  test::ConvNormRig rig(c, kernel, stride, {3, 64, size, size});
  const auto& [x_shape, normed, y_shape, spec] =
      std::tie(rig.x_shape, rig.conv, rig.y_shape, rig.spec);
  const auto& unit = rig.unit;
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
}

TEST_CASE("ConvNormAdd matches the naive loops", "[units]") {
  const Case c = GENERATE(from_range(test::unit_cases()));
  const bool projected = GENERATE(false, true);
  const auto second = GENERATE(test::Second::none, test::Second::whole, test::Second::compact);
  const int size = GENERATE(5, 8);
  CAPTURE(name_of(c.backend), name_of(c.precision), projected, static_cast<int>(second), size);
  if (second == test::Second::compact && c.backend == BackendKind::cpu) return;  // it has none
  test::ConvNormAddRig rig(c, projected, 2, second, {3, 64, size, size});
  const auto& [x_shape, normed, y_shape, input_shape, spec] =
      std::tie(rig.x_shape, rig.conv, rig.y_shape, rig.input_shape, rig.spec);
  const auto& unit = rig.unit;
  const Values x = rig.set(spec.x, x_shape, random_values(x_shape.count(), 1));
  const Values input = rig.set(spec.shortcut, input_shape, random_values(input_shape.count(), 2));
  Values dy = rig.set(spec.dy.first, y_shape, random_values(y_shape.count(), 3));
  if (second != test::Second::none) {
    const int stride = spec.dy.second_stride;
    const ActivationShape shape = strided(y_shape, stride);
    const Values compact = rig.set(spec.dy.second, shape, random_values(shape.count(), 4));
    dy = reference::add(dy, test::expanded(compact, y_shape, stride));
  }

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
  const Values dinput =
      test::expanded(rig.get(spec.dshortcut, strided(input_shape, spec.dshortcut_stride)),
                     input_shape, spec.dshortcut_stride);
  if (projected) {
    const auto p = projection->backward(dsum);
    CHECK(relative_error(dinput, p.dx) < 2 * limit);
    check_parameters(rig, *spec.shortcut_layer, p, 2 * limit);
  } else {
    CHECK(relative_error(dinput, dsum) < 2 * limit);
  }
}

TEST_CASE("Stem matches the naive loops", "[units]") {
  const Case c = GENERATE(from_range(test::unit_cases()));
  const bool two_addends = GENERATE(false, true);
  const int size = GENERATE(32, 37, 224);
  // cuDNN has kernels of its own for 224
  if (size == 224 && (c.backend == BackendKind::cpu || !two_addends)) return;
  CAPTURE(name_of(c.backend), name_of(c.precision), two_addends, size);
  test::StemRig rig(c, two_addends, 2, size);
  const auto& [image, y_shape, spec] = std::tie(rig.image, rig.y_shape, rig.spec);
  NormedConv normed = rig.conv;
  const ActivationShape activation = normed.conv.y();
  const auto& unit = rig.unit;

  // images come as bytes: the normalisation is checked on the way
  std::vector<std::uint8_t> pixels;
  Random random(5);
  for (int i = 0; i < 2 * size * size * 3; ++i)
    pixels.push_back(static_cast<std::uint8_t>(random.below(256)));
  const Buffer bytes = rig.of(pixels);
  rig.units->normalise_images(static_cast<const std::uint8_t*>(bytes.data()), image, *spec.x);
  const Values stored = rig.get(spec.x, image);
  const ActivationShape rgb{2, 3, size, size};
  const auto plane = static_cast<std::size_t>(size * size);
  Values x(rgb.count());
  Values wanted(rgb.count());
  bool padded = true;
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t ch = 0; ch < static_cast<std::size_t>(rig.stem_channels); ++ch)
      for (std::size_t i = 0; i < plane; ++i) {
        const double value =
            stored[(n * static_cast<std::size_t>(rig.stem_channels) + ch) * plane + i];
        if (ch >= 3) {
          padded = padded && value == 0;
          continue;
        }
        x[(n * 3 + ch) * plane + i] = value;
        wanted[(n * 3 + ch) * plane + i] =
            (pixels[(n * plane + i) * 3 + ch] / 255.0 - kImageMean[ch]) / kImageDeviation[ch];
      }
  CHECK(padded);
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
  const Case c = GENERATE(from_range(test::unit_cases()));
  const int classes = GENERATE(7, 1000);
  const double smoothing = GENERATE(0.0, 0.1);
  CAPTURE(name_of(c.backend), name_of(c.precision), classes, smoothing);
  const ActivationShape shape{5, 64, 3, 3};
  const std::vector<std::int32_t> labels{0, 6, -1, 3, 2};
  test::HeadRig rig(c, classes, shape, smoothing);
  const HeadSpec& spec = rig.spec;
  const auto& unit = rig.unit;
  const Values x = rig.set(spec.x, shape, random_values(shape.count(), 1, -2, 6));
  upload<std::int32_t>(*rig.device, *rig.stream, spec.labels->data(), labels);

  unit->forward(Pass::training);
  unit->forward(Pass::training);  // totals add up, the step's counts do not
  const Values w = rig.weight(spec.weight);
  const Values features = reference::average_pool(x, shape);
  const ConvShape linear{{5, 64, 1, 1}, classes};  // a linear layer is a convolution of one pixel
  const Values bias = rig.weight(spec.bias);
  Values logits = reference::convolve(features, w, linear);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] += bias[i % bias.size()];
  const auto loss = reference::softmax_cross_entropy(logits, labels, classes, smoothing);
  const double limit = tolerance(c.precision);
  CHECK(relative_error(
            download<float>(*rig.device, *rig.stream, spec.logits->data(), logits.size()), logits) <
        limit);
  const HeadMetrics metrics = rig.read_metrics();
  CHECK(metrics.step.samples == 4);
  CHECK(metrics.step.loss_sum == Approx(loss.sum).epsilon(limit));
  CHECK(metrics.step.top1 == loss.top1);
  CHECK(metrics.step.top5 == loss.top5);
  CHECK(metrics.total.samples == 8);
  CHECK(metrics.total.loss_sum == Approx(2 * loss.sum).epsilon(limit));

  unit->backward();
  Values db(bias.size(), 0.0);
  for (std::size_t i = 0; i < logits.size(); ++i) db[i % db.size()] += loss.dlogits[i];
  CHECK(relative_error(rig.gradient(spec.weight),
                       reference::convolve_dw(loss.dlogits, features, linear)) < 2 * limit);
  CHECK(relative_error(rig.gradient(spec.bias), db) < 2 * limit);
  CHECK(relative_error(rig.get(spec.dx, shape),
                       reference::average_pool_backward(
                           reference::convolve_dx(loss.dlogits, w, linear), shape)) < 2 * limit);
}

}  // namespace shakedown
