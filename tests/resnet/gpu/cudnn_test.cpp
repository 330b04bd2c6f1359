// cuDNN's plans for tensors that it cuts.
#include <algorithm>

#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/handles.hpp"
#include "tests/catch.hpp"
#include "tests/resnet/gpu/kernel_rig.hpp"

namespace shakedown {

TEST_CASE(
    "a weight gradient over 2^31 elements has a plan that one over half of the batch prefers, "
    "and is the sum of both halves'",
    "[units][cudnn]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
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
    return plan->name() == of_all.front()->name();
  });
  REQUIRE(same != of_half.end());

  const DataType type = DataType::float16;
  const gpu::ConvPlan& first = *of_all.front();
  const ConvShape& conv = first.conv();
  const Buffer x(*rig.device, conv.x.count() * size_of(type));
  const Buffer dy(*rig.device, conv.y().count() * size_of(type));
  gpu::randomise(x.data(), conv.x.count(), type, rig.native());
  gpu::randomise(dy.data(), conv.y().count(), type, rig.native());
  const auto gradient = [&](const std::shared_ptr<const gpu::ConvPlan>& plan, std::size_t half) {
    const Buffer dw(*rig.device, conv.weight_count() * size_of(type));
    const Buffer workspace(*rig.device, std::max<std::size_t>(1, plan->workspace_bytes()));
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
