// The stem by our own convolution, compared with cuDNN's; cuDNN's plans for tensors that it cuts.
#include <algorithm>
#include <tuple>

#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/handles.hpp"
#include "tests/catch.hpp"
#include "tests/resnet/gpu/kernel_rig.hpp"
#include "tests/resnet/unit_rig.hpp"

namespace shakedown {
namespace {

using test::Values;

struct StemResult {
  Values y, dw, gamma, beta, evaluated;
};

StemResult stem_of(Precision precision, Fusion fusion, int images, int size, bool two_addends) {
  test::StemRig rig({BackendKind::gpu, precision, fusion}, two_addends, images, size);
  const auto& [image, normed, y_shape, spec] = std::tie(rig.image, rig.conv, rig.y_shape, rig.spec);
  const auto& unit = rig.unit;
  rig.negate_gamma();
  rig.set_image(test::random_values(image.count(), 1));
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

GPU_TEST_CASE("the stem by our own convolution is what it is by cuDNN's", "[units][stem]") {
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

// cuDNN's plans for tensors that it cuts.

GPU_TEST_CASE(
    "a weight gradient over 2^31 elements has a plan that one over half of the batch prefers, "
    "and is the sum of both halves'",
    "[units][cudnn]") {
  constexpr std::size_t kNeeded = std::size_t{8} << 30;
  test::KernelRig rig;
  if (rig.device->memory().free_bytes < kNeeded) return;
  const gpu::DnnHandle dnn(rig.native());
  constexpr int kHalf = 1344;  // 2^31 elements are 2,674.9 images
  const auto plans_of = [&](int images) {
    constexpr int kPreferred = 8;
    return gpu::plan_convolution(dnn.get, {gpu::ConvKind::backward_weights,
                                           {{images, 256, 56, 56}, 64, 1, 1, 0},
                                           Precision::fp16,
                                           false,
                                           kPreferred,
                                           ""});
  };
  const gpu::ConvPlans of_all = plans_of(2 * kHalf);
  REQUIRE(!of_all.empty());
  const gpu::ConvPlans of_half = plans_of(kHalf);
  const auto same = std::find_if(of_half.begin(), of_half.end(), [&](const auto& plan) {
    return plan->name == of_all.front()->name;
  });
  REQUIRE(same != of_half.end());

  const DataType type = DataType::float16;
  const gpu::ConvPlan& first = *of_all.front();
  const ConvShape& conv = first.conv;
  const Buffer x(*rig.device, conv.x.count() * size_of(type));
  const Buffer dy(*rig.device, conv.y().count() * size_of(type));
  gpu::randomise(x.data(), conv.x.count(), type, rig.native());
  gpu::randomise(dy.data(), conv.y().count(), type, rig.native());
  const auto gradient = [&](const std::shared_ptr<const gpu::ConvPlan>& plan, std::size_t half) {
    const Buffer dw(*rig.device, conv.weight_count() * size_of(type));
    const Buffer workspace(*rig.device, std::max<std::size_t>(1, plan->workspace_bytes));
    const auto from = [&](const Buffer& all) {
      return static_cast<std::uint8_t*>(all.data()) + half * all.bytes() / 2;
    };
    gpu::BoundPlan(plan, {from(x), dw.data(), from(dy)}, workspace.data()).execute(dnn.get);
    return rig.get(dw.view(type));
  };
  const test::Values all = gradient(of_all.front(), 0);
  const test::Values low = gradient(*same, 0);
  const test::Values high = gradient(*same, 1);
  test::Values sum(all.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = low[i] + high[i];
  CHECK(test::relative_error(all, sum) < test::rounding(type));
}

}  // namespace shakedown
