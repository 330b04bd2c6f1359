// The gradient at the end of a block: fused kernels against one another and against float64.
#include <cmath>

#include "common/hash.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/resnet/gpu/kernel_rig.hpp"

namespace shakedown {
namespace {

using test::floats_of;
using test::random_values;
using test::relative_error;
using test::rounding;
using test::Tensor;
using test::Values;
using test::widen;
using Rig = test::KernelRig;

}  // namespace

TEST_CASE("the end of a block is the same whichever centred tensors its sums are taken with",
          "[gram][kernels]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  const ActivationShape shape =
      GENERATE(ActivationShape{3, 256, 5, 7}, ActivationShape{8, 512, 16, 16});
  const int stride = GENERATE(1, 2);
  const bool fused = GENERATE(false, true);
  CAPTURE(name_of(type), shape.c, stride, fused);
  constexpr int kDepth = 64;
  Rig rig;
  const auto channels = static_cast<std::size_t>(shape.c);
  const Tensor dz =
      rig.rounded(type, random_values(shape.count() / channels * kDepth, 1, -0.5, 0.5));
  const Tensor w = rig.rounded(type, random_values(kDepth * channels, 2, -0.5, 0.5));
  const Tensor dy = rig.rounded(type, random_values(strided(shape, stride).count(), 3));
  const Tensor z = rig.rounded(type, random_values(shape.count(), 4));
  const Tensor s = rig.rounded(type, random_values(shape.count(), 5));
  std::vector<std::uint8_t> bits;
  Random random(6);
  for (std::size_t i = 0; i < gpu::mask_bytes(shape, type); ++i)
    bits.push_back(static_cast<std::uint8_t>(random.below(256)));
  const Buffer mask = test::to_device(*rig.device, *rig.stream, bits);
  const Buffer means = test::to_device(*rig.device, *rig.stream, random_values(channels, 7));
  const std::vector<float> product = random_values(shape.count(), 8);
  const auto run = [&](int count) {
    const Tensor dsum = rig.rounded(type, product);
    const Buffer partials = rig.floats(gpu::reduction_scratch(shape, type, 3));
    const gpu::CentredTensors centred{
        count, {{z.memory.data(), floats_of(means)}, {s.memory.data(), floats_of(means)}}};
    const auto* of = static_cast<const std::uint8_t*>(mask.data());
    const int parts =
        fused ? gpu::conv_add_relu_backward({dz.memory.data(), w.memory.data(), kDepth},
                                            {dy.memory.data(), stride}, of, dsum.memory.data(),
                                            centred, floats_of(partials), rig.on(shape, type))
              : gpu::add_relu_backward(dsum.memory.data(), {dy.memory.data(), stride}, of, centred,
                                       floats_of(partials), rig.on(shape, type));
    const Buffer total = rig.floats(3 * channels);
    gpu::sum_partials(floats_of(partials), parts, (1 + count) * shape.c, floats_of(total),
                      rig.native());
    return std::pair(rig.get(dsum.memory.view(type)),
                     widen(download<float>(*rig.device, *rig.stream, total.data(),
                                           static_cast<std::size_t>(1 + count) * channels)));
  };
  const auto none = run(0);
  Values sums(channels, 0.0);
  for (std::size_t i = 0; i < none.first.size(); ++i) sums[i % channels] += none.first[i];
  CHECK(relative_error(none.second, sums) < 1e-5);
  for (const int count : {1, 2}) {
    CAPTURE(count);
    const auto some = run(count);
    CHECK(some.first == none.first);  // to the last bit
    CHECK(relative_error(Values(some.second.begin(), some.second.begin() + shape.c), none.second) <
          1e-5);
  }
}

TEST_CASE("the gradient at the end of a block on wgmma is what it is on mma.sync",
          "[gram][kernels]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const int of_z = GENERATE(128, 256);
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  if (!gpu::has_wide_conv_add_relu_backward(type, of_z, 4 * of_z)) return;
  const auto depth = static_cast<std::size_t>(of_z);
  const std::size_t channels = 4 * depth;
  const ActivationShape shape =
      GENERATE_COPY(ActivationShape{1, 4 * of_z, 3, 3}, ActivationShape{3, 4 * of_z, 9, 11},
                    ActivationShape{16, 4 * of_z, 21, 23});
  CAPTURE(name_of(type), shape.n, of_z);
  Rig rig;
  const Tensor dz =
      rig.rounded(type, random_values(shape.count() / channels * depth, 1, -0.5, 0.5));
  const Tensor w = rig.rounded(type, random_values(depth * channels, 2, -0.5, 0.5));
  const Tensor dy = rig.rounded(type, random_values(shape.count(), 3));
  std::vector<std::uint8_t> bits;
  Random random(6);
  for (std::size_t i = 0; i < gpu::mask_bytes(shape, type); ++i)
    bits.push_back(static_cast<std::uint8_t>(random.below(256)));
  const Buffer mask = test::to_device(*rig.device, *rig.stream, bits);
  const auto* of = static_cast<const std::uint8_t*>(mask.data());
  const gpu::GradientProduct product{dz.memory.data(), w.memory.data(), of_z};
  const auto run = [&](bool wide) {
    const Tensor dsum = rig.rounded(type, std::vector<float>(shape.count(), std::nanf("")));
    const Buffer partials = rig.floats(gpu::reduction_scratch(shape, type, 1));
    const int parts =
        wide ? gpu::wide_conv_add_relu_backward(product, dy.memory.data(), of, dsum.memory.data(),
                                                floats_of(partials), rig.on(shape, type))
             : gpu::conv_add_relu_backward(product, {dy.memory.data(), 1}, of, dsum.memory.data(),
                                           {}, floats_of(partials), rig.on(shape, type));
    const Buffer total = rig.floats(channels);
    gpu::sum_partials(floats_of(partials), parts, shape.c, floats_of(total), rig.native());
    return std::pair(rig.get(dsum.memory.view(type)),
                     widen(download<float>(*rig.device, *rig.stream, total.data(), channels)));
  };
  const auto wide = run(true);
  const auto expected = run(false);
  std::size_t passed = 0;  // against float64, some rows
  Values some, exact;
  for (std::size_t i = 0; i < wide.first.size(); i += 499) {
    const bool passes = (bits[i / 8] >> i % 8 & 1) != 0;
    passed += passes ? 1 : 0;
    double sum = passes ? dy.values[i] : 0;
    for (std::size_t j = 0; passes && j < depth; ++j)
      sum += dz.values[i / channels * depth + j] * w.values[j * channels + i % channels];
    some.push_back(wide.first[i]);
    exact.push_back(sum);
  }
  CHECK(passed > 0);
  CHECK(relative_error(some, exact) < rounding(type));
  CHECK(relative_error(wide.first, expected.first) < rounding(type));
  Values sums(channels, 0.0);
  for (std::size_t i = 0; i < wide.first.size(); ++i) sums[i % channels] += wide.first[i];
  CHECK(relative_error(wide.second, sums) < 1e-5);
  CHECK(run(true) == wide);
}

}  // namespace shakedown
