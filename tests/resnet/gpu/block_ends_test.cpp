// The end of a block: statistics from sums over the convolution's input, fused gradients; kernels
// against one another and against float64. The units that they are part of are compared with the
// unfused in tests/resnet/fused_reduction_test.cpp.
#include <algorithm>
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
using test::rows_of;
using test::Tensor;
using test::Values;
using test::widen;

using Rig = test::KernelRig;

/// Of y: rows x channels.
struct Sums {
  Values gram, sum;

  Sums(const Values& y, std::size_t channels) : gram(channels * channels, 0.0), sum(channels, 0.0) {
    for (std::size_t row = 0; row < y.size() / channels; ++row)
      for (std::size_t i = 0; i < channels; ++i) {
        const double of_row = y[row * channels + i];
        sum[i] += of_row;
        for (std::size_t j = 0; j < channels; ++j)
          gram[i * channels + j] += of_row * y[row * channels + j];
      }
  }
};

/// What batch_statistics leaves, of each filter.
struct Statistics {
  Values mean, invstd, scale, shift, running_mean, running_variance;
};

constexpr double kRunningMean = 0.25;
constexpr double kRunningVariance = 2;

Statistics expected_statistics(const Values& y, const Values& w, std::size_t channels,
                               const Values& gamma, const Values& beta) {
  const std::size_t rows = y.size() / channels;
  const auto n = static_cast<double>(rows);
  Statistics out;
  for (std::size_t k = 0; k < gamma.size(); ++k) {
    double sum = 0, squares = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      double z = 0;
      for (std::size_t j = 0; j < channels; ++j) z += y[row * channels + j] * w[k * channels + j];
      sum += z;
      squares += z * z;
    }
    const double mean = sum / n;
    const double variance = std::max(0.0, squares / n - mean * mean);
    out.mean.push_back(mean);
    out.invstd.push_back(1 / std::sqrt(variance + kNormEpsilon));
    out.scale.push_back(gamma[k] * out.invstd[k]);
    out.shift.push_back(beta[k] - mean * out.scale[k]);
    out.running_mean.push_back(0.9 * kRunningMean + 0.1 * mean);
    out.running_variance.push_back(0.9 * kRunningVariance + 0.1 * variance * n / (n - 1));
  }
  return out;
}

bool has_statistics(std::size_t channels) {
  const auto c = static_cast<int>(channels);
  return gpu::has_gram_conv_relu_backward(DataType::float16, c, 4 * c);
}

Statistics gram_statistics(Rig& rig, DataType type, const Tensor& w, const Sums& sums,
                           std::size_t rows, const std::vector<float>& gamma,
                           const std::vector<float>& beta) {
  const std::size_t channels = sums.sum.size();
  const std::size_t filters = gamma.size();
  const Buffer gram = rig.of(test::narrow(sums.gram)), sum = rig.of(test::narrow(sums.sum));
  const Buffer of_gamma = rig.of(gamma), of_beta = rig.of(beta);
  const Buffer mean = rig.of(std::vector<float>(filters, kRunningMean));
  const Buffer variance = rig.of(std::vector<float>(filters, kRunningVariance));
  const Buffer vectors = rig.floats(gpu::NormVectors::kCount * filters);
  const auto norm = gpu::NormVectors::in(floats_of(vectors), static_cast<int>(filters));
  gpu::gram_statistics(w.data(), static_cast<int>(channels), floats_of(gram), floats_of(sum),
                       {floats_of(of_gamma), floats_of(of_beta), floats_of(mean),
                        floats_of(variance), nullptr, nullptr},
                       norm,
                       rig.on({1, static_cast<int>(filters), static_cast<int>(rows), 1}, type));
  const auto get = [&](const float* from) { return rig.read(from, filters); };
  return {get(norm.mean),  get(norm.invstd),     get(norm.scale),
          get(norm.shift), get(floats_of(mean)), get(floats_of(variance))};
}

}  // namespace

GPU_TEST_CASE("statistics from the Gram matrix match float64", "[gram][kernels]") {
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  const std::size_t channels = GENERATE(64, 128, 256);
  const std::size_t rows = GENERATE(27, 780);
  const double offset = GENERATE(0.0, 3.0);  // a mean far larger than the deviation
  CAPTURE(name_of(type), channels, rows, offset);
  const std::size_t filters = 4 * channels;
  if (!has_statistics(channels)) return;
  Rig rig;
  const Tensor y = rig.rounded(type, random_values(rows * channels, 1, offset, offset + 1));
  const Tensor w = rig.rounded(type, random_values(filters * channels, 2, -0.3, 0.3));
  const auto gamma = random_values(filters, 3, 0.5, 1.5);
  const auto beta = random_values(filters, 4);
  const Statistics out = gram_statistics(rig, type, w, Sums(y.values, channels), rows, gamma, beta);
  const Statistics expected =
      expected_statistics(y.values, w.values, channels, widen(gamma), widen(beta));
  // what rounding G to float32 costs grows with the square of the mean
  const double limit = offset == 0 ? 1e-6 : 1e-4;
  CHECK(relative_error(out.mean, expected.mean) < 1e-6);
  CHECK(relative_error(out.running_mean, expected.running_mean) < 1e-6);
  CHECK(relative_error(out.running_variance, expected.running_variance) < 1e-5);
  for (const auto vector : {&Statistics::invstd, &Statistics::scale, &Statistics::shift})
    CHECK(relative_error(out.*vector, expected.*vector) < limit);
}

GPU_TEST_CASE("statistics from the Gram matrix of constants and of a NaN", "[gram][nan]") {
  constexpr std::size_t kRows = 75;
  const std::size_t channels = GENERATE(64, 128, 256);
  if (!has_statistics(channels)) return;
  const std::size_t filters = 4 * channels;
  Rig rig;
  const Values ones(kRows * channels, 1.0);
  const std::vector<float> gamma(filters, 1.0F), beta(filters, 0.0F);
  auto values = random_values(filters * channels, 1, -0.3, 0.3);
  values[7 * channels + 5] = std::nanf("");
  const Tensor w = rig.rounded(DataType::float16, values);
  const Statistics out =
      gram_statistics(rig, DataType::float16, w, Sums(ones, channels), kRows, gamma, beta);
  for (std::size_t k = 0; k < filters; ++k) {
    CAPTURE(channels, k);
    if (k == 7) {
      CHECK(std::isnan(out.mean[k]));
      CHECK(std::isnan(out.invstd[k]));
    } else {
      CHECK(out.invstd[k] == Approx(1 / std::sqrt(1e-5)).epsilon(1e-3));  // a variance of 0
    }
  }
}

// The gradient at the end of a block: fused kernels against one another and against float64.

namespace {

/// How it is computed: by a pass over a product, or with the product on mma.sync or on wgmma.
enum class Way { pass, narrow, wide };

struct EndGradient {
  DataType type;
  ActivationShape shape;
  int depth;
  int stride;  // of dy
  std::size_t channels = static_cast<std::size_t>(shape.c);
  Rig rig{};
  Tensor dz = tensor(rows_of(shape) * static_cast<std::size_t>(depth), 1, 0.5);
  Tensor w = tensor(static_cast<std::size_t>(depth) * channels, 2, 0.5);
  Tensor dy = tensor(strided(shape, stride).count(), 3);
  Tensor z = tensor(shape.count(), 4), s = tensor(shape.count(), 5);
  Buffer means = rig.of(random_values(channels, 7));
  std::vector<std::uint8_t> bits = random_bits();
  Buffer mask = rig.of(bits);

  Tensor tensor(std::size_t count, std::uint64_t seed, double most = 1) {
    return rig.rounded(type, random_values(count, seed, -most, most));
  }
  std::vector<std::uint8_t> random_bits() const {
    std::vector<std::uint8_t> made(gpu::mask_bytes(shape, type));
    Random random(6);
    for (auto& byte : made) byte = static_cast<std::uint8_t>(random.below(256));
    return made;
  }

  /// dsum, and its sums: of it, and of it with each of `count` centred tensors.
  std::pair<Values, Values> run(Way way, int count) {
    const Tensor dsum = way == Way::pass
                            ? tensor(shape.count(), 8)
                            : rig.rounded(type, std::vector<float>(shape.count(), std::nanf("")));
    const Buffer partials = rig.floats(gpu::reduction_scratch(shape, type, 1 + count));
    const gpu::CentredTensors centred{count,
                                      {{z.data(), floats_of(means)}, {s.data(), floats_of(means)}}};
    const gpu::GradientProduct product{dz.data(), w.data(), depth};
    const gpu::Addend addend{dy.data(), stride};
    const auto* of = static_cast<const std::uint8_t*>(mask.data());
    const gpu::Launch on = rig.on(shape, type);
    float* const to = floats_of(partials);
    const auto parts = [&] {
      if (way == Way::pass) return gpu::add_relu_backward(dsum.data(), addend, of, centred, to, on);
      if (way == Way::narrow)
        return gpu::conv_add_relu_backward(product, addend, of, dsum.data(), centred, to, on);
      return gpu::wide_conv_add_relu_backward(product, dy.data(), of, dsum.data(), to, on);
    };
    const int made = parts();
    return {rig.get(dsum.memory.view(type)),
            rig.totals(partials, made, static_cast<std::size_t>(1 + count) * channels)};
  }
  void check_sums(const std::pair<Values, Values>& made) const {
    Values sums(channels, 0.0);
    for (std::size_t i = 0; i < made.first.size(); ++i) sums[i % channels] += made.first[i];
    CHECK(relative_error(Values(made.second.begin(), made.second.begin() + shape.c), sums) < 1e-5);
  }
};

}  // namespace

GPU_TEST_CASE("the end of a block is the same with any centred tensors", "[gram][kernels]") {
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  const ActivationShape shape =
      GENERATE(ActivationShape{3, 256, 5, 7}, ActivationShape{8, 512, 16, 16});
  const int stride = GENERATE(1, 2);
  const Way way = GENERATE(Way::pass, Way::narrow);
  CAPTURE(name_of(type), shape.c, stride, static_cast<int>(way));
  EndGradient end{type, shape, 64, stride};
  const auto none = end.run(way, 0);
  end.check_sums(none);
  for (const int count : {1, 2}) {
    CAPTURE(count);
    const auto some = end.run(way, count);
    CHECK(some.first == none.first);  // to the last bit
    end.check_sums(some);
  }
}

GPU_TEST_CASE("a block end's gradient on wgmma is that on mma.sync", "[gram][kernels]") {
  const int depth = GENERATE(128, 256);
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  if (!gpu::has_wide_conv_add_relu_backward(type, depth, 4 * depth)) return;
  const ActivationShape shape =
      GENERATE_COPY(ActivationShape{1, 4 * depth, 3, 3}, ActivationShape{3, 4 * depth, 9, 11},
                    ActivationShape{16, 4 * depth, 21, 23});
  CAPTURE(name_of(type), shape.n, depth);
  EndGradient end{type, shape, depth, 1};
  const auto wide = end.run(Way::wide, 0);
  std::size_t passed = 0;  // against float64, some rows
  Values some, exact;
  for (std::size_t i = 0; i < wide.first.size(); i += 499) {
    const bool passes = (end.bits[i / 8] >> i % 8 & 1) != 0;
    passed += passes ? 1 : 0;
    double sum = passes ? end.dy.values[i] : 0;
    const auto inner = static_cast<std::size_t>(depth);
    for (std::size_t j = 0; passes && j < inner; ++j)
      sum += end.dz.values[i / end.channels * inner + j] *
             end.w.values[j * end.channels + i % end.channels];
    some.push_back(wide.first[i]);
    exact.push_back(sum);
  }
  CHECK(passed > 0);
  CHECK(relative_error(some, exact) < rounding(type));
  CHECK(relative_error(wide.first, end.run(Way::narrow, 0).first) < rounding(type));
  end.check_sums(wide);
  CHECK(end.run(Way::wide, 0) == wide);
}

}  // namespace shakedown
