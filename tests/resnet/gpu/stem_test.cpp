// The stem by our own convolution, compared with cuDNN's.
#include <cmath>

#include "tests/catch.hpp"
#include "tests/resnet/unit_rig.hpp"

using namespace shakedown;
using test::Values;

namespace {

struct StemResult {
  Values y, dw, gamma, beta, evaluated;
};

StemResult stem_of(Precision precision, Fusion fusion, int images, int size, bool two_addends) {
  test::UnitRig rig({BackendKind::gpu, precision, fusion},
                    test::layers_with({"layer1.0", {}, std::nullopt}), 10);
  const ActivationShape image{images, rig.stem_channels, size, size};
  const NormedConv normed = rig.normed({"conv1", "bn1", 3, 64, 7, 2}, image);
  const ActivationShape y_shape = pooled(normed.conv.y());
  StemSpec spec{{0, 1}, normed, rig.activation("x", image), rig.activation("y", y_shape), {}};
  spec.dy.first = rig.activation("dy a", y_shape);
  if (two_addends) spec.dy.second = rig.activation("dy b", y_shape);
  const auto unit = rig.units->stem(spec);
  rig.bind(*unit);
  rig.set_weights();
  auto gamma = test::random_values(64, 9, 0.5, 1.5);
  for (std::size_t k = 1; k < gamma.size(); k += 2) gamma[k] = -gamma[k];
  upload<float>(*rig.device, *rig.stream, rig.weights.vector(normed.gamma), gamma);
  auto x = test::random_values(image.count(), 1);
  const std::size_t plane = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i / plane % 4 == 3) x[i] = 0;
  rig.set(spec.x, image, x);
  StemResult result;
  unit->forward(Pass::evaluation);
  result.evaluated = rig.get(spec.y, y_shape);
  unit->forward(Pass::training);
  result.y = rig.get(spec.y, y_shape);
  rig.set(spec.dy.first, y_shape, test::random_values(y_shape.count(), 3));
  if (two_addends) rig.set(spec.dy.second, y_shape, test::random_values(y_shape.count(), 4));
  unit->backward();
  result.dw = rig.gradient(normed.weight);
  result.gamma = rig.gradient(normed.gamma);
  result.beta = rig.gradient(normed.beta);
  return result;
}

}  // namespace

TEST_CASE("the stem by our own convolution is what it is by cuDNN's", "[units][stem]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  struct Shape {
    int images, size;
  };
  // more steps than blocks, whose first and last are in the middle of an image; one of few
  const Shape shape = GENERATE(Shape{24, 224}, Shape{150, 96}, Shape{3, 160}, Shape{2, 32});
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const bool two_addends = shape.images % 2 == 0;
  CAPTURE(shape.images, shape.size, name_of(precision));
  const StemResult ours = stem_of(precision, Fusion::stem, shape.images, shape.size, two_addends);
  const StemResult plain = stem_of(precision, Fusion::none, shape.images, shape.size, two_addends);
  const double limit = precision == Precision::fp16 ? 2e-3 : 1.6e-2;
  CHECK(test::relative_error(ours.evaluated, plain.evaluated) < limit);
  CHECK(test::relative_error(ours.y, plain.y) < limit);
  // rounded, a near tie in a window may go to another element
  CHECK(test::relative_error(ours.beta, plain.beta) < 2 * limit);
  CHECK(test::relative_error(ours.gamma, plain.gamma) < 10 * limit);
  CHECK(test::relative_error(ours.dw, plain.dw) < 10 * limit);
}
