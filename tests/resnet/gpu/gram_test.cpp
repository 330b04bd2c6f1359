// A norm through the Gram matrix (resnet/gpu/unit_kernels.hpp) against float64.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "resnet/gpu/convolution.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/resnet/gpu/kernel_rig.hpp"

namespace shakedown {
namespace {

using test::floats_of;
using test::narrow;
using test::positive_values;
using test::random_values;
using test::relative_error;
using test::rounding;
using test::Tensor;
using test::Values;
using test::widen;

using Rig = test::KernelRig;

struct Case {
  DataType type;
  ActivationShape y;  // c is 64, 128 or 256
  int filters() const { return 4 * y.c; }
};

/// y after a ReLU, g half of which is masked, weights, and the norms after and before the
/// convolution, in float64: what dz, dy, dw and the norms' gradients are.
struct Problem {
  Case c;
  std::size_t rows, channels, filters;
  Tensor y, g, w, inner_z;
  std::vector<float> gamma;
  Values mean, invstd;  // of z = y w'
  Values sum_of_g, dgamma, a, b, coefficient_c;
  Values inner_scale, inner_shift, inner_mean;

  Problem(Rig& rig, const Case& of)
      : c(of),
        rows(test::rows_of(of.y)),
        channels(static_cast<std::size_t>(of.y.c)),
        filters(static_cast<std::size_t>(of.filters())) {
    y = rig.rounded(c.type, positive_values(rows * channels));
    auto masked = random_values(rows * filters, 2, -1, 1.2);
    const auto chance = random_values(rows * filters, 3, 0, 1);
    for (std::size_t i = 0; i < masked.size(); ++i)
      if (chance[i] < 0.5F) masked[i] = 0;
    g = rig.rounded(c.type, masked);
    w = rig.rounded(c.type, random_values(filters * channels, 4, -0.3, 0.3));
    inner_z = rig.rounded(c.type, random_values(rows * channels, 5));
    gamma = random_values(filters, 6, 0.5, 1.5);
    inner_scale = widen(random_values(channels, 7, -1, 1.5));
    inner_shift = widen(random_values(channels, 8, -0.3, 0.3));
    inner_mean = widen(random_values(channels, 9, -0.3, 0.3));
    differentiate();
  }

  double z_at(std::size_t row, std::size_t k) const {
    double z = 0;
    for (std::size_t j = 0; j < channels; ++j)
      z += y.values[row * channels + j] * w.values[k * channels + j];
    return z;
  }
  double dz_at(std::size_t row, std::size_t k) const {
    return a[k] * g.values[row * filters + k] + b[k] * z_at(row, k) + coefficient_c[k];
  }
  bool passes(std::size_t row, std::size_t j) const {
    const auto value = static_cast<float>(inner_z.values[row * channels + j]);
    return value * static_cast<float>(inner_scale[j]) + static_cast<float>(inner_shift[j]) > 0;
  }
  Values dy_of(std::size_t row) const {
    Values dy(channels, 0.0);
    for (std::size_t k = 0; k < filters; ++k) {
      const double dz = dz_at(row, k);
      for (std::size_t j = 0; j < channels; ++j) dy[j] += dz * w.values[k * channels + j];
    }
    for (std::size_t j = 0; j < channels; ++j)
      if (!passes(row, j)) dy[j] = 0;
    return dy;
  }
  Values dw_of(std::size_t k) const {
    Values dw(channels, 0.0);
    for (std::size_t row = 0; row < rows; ++row) {
      const double dz = dz_at(row, k);
      for (std::size_t j = 0; j < channels; ++j) dw[j] += dz * y.values[row * channels + j];
    }
    return dw;
  }

 private:
  void differentiate() {
    const auto n = static_cast<double>(rows);
    Values sum(filters, 0.0), squares(filters, 0.0), product(filters, 0.0);
    sum_of_g.assign(filters, 0.0);
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t k = 0; k < filters; ++k) {
        const double z = z_at(row, k);
        const double gradient = g.values[row * filters + k];
        sum[k] += z;
        squares[k] += z * z;
        product[k] += gradient * z;
        sum_of_g[k] += gradient;
      }
    for (std::size_t k = 0; k < filters; ++k) {
      mean.push_back(sum[k] / n);
      invstd.push_back(1 / std::sqrt(squares[k] / n - mean[k] * mean[k] + kNormEpsilon));
      dgamma.push_back((product[k] - mean[k] * sum_of_g[k]) * invstd[k]);
      a.push_back(static_cast<double>(gamma[k]) * invstd[k]);
      b.push_back(-a[k] * invstd[k] * dgamma[k] / n);
      coefficient_c.push_back(-a[k] * sum_of_g[k] / n - b[k] * mean[k]);
    }
  }
};

/// Where the hardware has accumulator i of a warpgroup's thread in a product of 64 rows (PTX ISA,
/// wgmma's D fragment): its row, and its column as the product has them.
unsigned hardware_row(unsigned thread, unsigned i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
unsigned hardware_column(unsigned thread, unsigned i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

}  // namespace

TEST_CASE("a sum over rows is cut into equal parts, none of them long", "[gram]") {
  for (const std::size_t rows : {10907008U, 802816U, 200704U, 50176U, 12544U, 780U, 75U, 7U, 1U}) {
    CAPTURE(rows);
    const int parts = gpu::gram_parts(rows, 128);
    REQUIRE(parts > 0);
    CHECK(rows % static_cast<std::size_t>(parts) == 0);
    CHECK(rows / static_cast<std::size_t>(parts) <= 6272);
  }
  CHECK(gpu::gram_parts(802816, 128) == 128);
  CHECK(gpu::gram_parts(200704, 32) == 32);
  CHECK(gpu::gram_parts(75, 128) == 1);
  CHECK(gpu::gram_parts(1000003, 128) == 0);  // a prime
  CHECK(gpu::gram_parts_of_d(802816, 64) == 64);
  CHECK(gpu::gram_parts_of_d(200704, 128) == 32);
  CHECK(gpu::gram_parts_of_d(50176, 256) == 8);
  CHECK(gpu::gram_parts_of_d(1605632, 64) == 128);  // none longer than 12,544 rows
  CHECK(gpu::gram_parts_of_d(75, 64) == 1);
  CHECK(gpu::gram_parts_of_g(200704, 128) == 128);
  CHECK(gpu::gram_parts_of_g(50176, 256) == 32);
}

namespace {

/// The whole chain on the GPU.
struct Outcome {
  Values d, gram, dgamma, dbeta, a, b, c, placed, scaled, bias, dw, dy, dy_sums;
  double unscale = 0;
};

constexpr std::size_t kWorkspace = std::size_t{32} << 20;

/// Of the numbers; a NaN is at the same places in both.
double error_of_numbers(Values values, Values expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(values[i]) != std::isnan(expected[i])) return INFINITY;
    if (std::isnan(expected[i])) values[i] = expected[i] = 0;
  }
  return relative_error(values, expected);
}

Values parted_product(Rig& rig, gpu::BlasHandle& blas, const Problem& p, const Tensor& left,
                      int left_columns, Buffer& parts, int& count) {
  count = gpu::gram_parts(p.rows, 32);
  REQUIRE(count > 0);
  const gpu::PartedProduct product(blas, {p.rows, count, left_columns, p.c.y.c, p.c.type},
                                   kWorkspace);
  REQUIRE(product.algorithms() > 0);
  const std::size_t size = static_cast<std::size_t>(left_columns) * p.channels;
  parts = rig.floats(static_cast<std::size_t>(count) * size);
  const Buffer workspace(*rig.device, kWorkspace);
  Values first;
  for (std::size_t i = 0; i < product.algorithms(); ++i) {  // the first is run last, and kept
    product.run(product.algorithms() - 1 - i, left.data(), p.y.data(), floats_of(parts),
                workspace.data(), rig.native());
    const Values result = rig.totals(parts, count, size);
    if (i == 0) first = result;
    CAPTURE(i);
    CHECK(error_of_numbers(result, first) < 2e-4);
    if (i + 1 == product.algorithms()) return result;
  }
  return first;
}

/// What dy has before the kernel: g (a w) in two products, else NaN.
Tensor before_gram(Rig& rig, const Problem& p, const Values& scaled) {
  std::vector<float> product(p.rows * p.channels, std::nanf(""));
  if (scaled.empty()) return rig.rounded(p.c.type, product);
  Values line(p.channels);
  for (std::size_t row = 0; row < p.rows; ++row) {
    std::fill(line.begin(), line.end(), 0.0);
    for (std::size_t k = 0; k < p.filters; ++k) {
      const double g = p.g.values[row * p.filters + k];
      if (g == 0) continue;
      for (std::size_t j = 0; j < p.channels; ++j) line[j] += g * scaled[k * p.channels + j];
    }
    for (std::size_t j = 0; j < p.channels; ++j)
      product[row * p.channels + j] = static_cast<float>(line[j]);
  }
  return rig.rounded(p.c.type, product);
}

Outcome run(Rig& rig, const Problem& p) {
  gpu::BlasHandle blas(*rig.device, rig.native());
  Outcome out;
  Buffer d_parts, gram_parts;
  int d_count = 0, gram_count = 0;
  out.d = parted_product(rig, blas, p, p.g, p.c.filters(), d_parts, d_count);
  out.gram = parted_product(rig, blas, p, p.y, p.c.y.c, gram_parts, gram_count);
  const Buffer gram = rig.of(narrow(rig.totals(gram_parts, gram_count, p.channels * p.channels)));
  const Buffer vectors = rig.vectors_with(p.filters, {{0, p.mean}, {1, p.invstd}});
  const auto norm = gpu::NormVectors::in(floats_of(vectors), p.c.filters());
  const Buffer gamma = rig.of(p.gamma);
  const Buffer sum_of_g = rig.of(narrow(p.sum_of_g));
  const std::size_t element = size_of(p.c.type);
  const Buffer dgamma(*rig.device, p.filters * element), dbeta(*rig.device, p.filters * element);
  const Buffer d = rig.floats(p.filters * p.channels), largest = rig.floats(p.filters);
  const Buffer bias = rig.floats(p.channels);
  const Buffer unscale = rig.floats(1);
  const bool in_two = gpu::gram_in_two(p.c.y.c);
  const std::size_t depth = p.channels + (in_two ? 0 : p.filters);
  const Buffer placed(*rig.device, depth * p.channels * element);
  const Buffer scaled(*rig.device, p.filters * p.channels * element);
  const gpu::GramMatrices m{p.c.y.c,
                            p.c.filters(),
                            p.w.data(),
                            floats_of(d),
                            floats_of(largest),
                            floats_of(bias),
                            floats_of(unscale),
                            placed.data(),
                            in_two ? scaled.data() : nullptr};
  gpu::gram_coefficients(floats_of(d_parts), d_count, floats_of(sum_of_g),
                         {floats_of(gamma), nullptr, nullptr, nullptr, dgamma.data(), dbeta.data()},
                         norm, static_cast<float>(1.0 / static_cast<double>(p.rows)), m, p.c.type,
                         rig.native());
  const auto vector = [&](const float* from) { return rig.read(from, p.filters); };
  out.dgamma = rig.get(dgamma.view(p.c.type));
  out.dbeta = rig.get(dbeta.view(p.c.type));
  out.a = vector(norm.grad_a);
  out.b = vector(norm.grad_b);
  out.c = vector(norm.grad_c);
  CHECK(error_of_numbers(rig.read(floats_of(d), p.filters * p.channels), out.d) < 1e-6);

  out.placed = rig.get(placed.view(p.c.type));
  if (in_two) out.scaled = rig.get(scaled.view(p.c.type));
  out.bias = rig.read(floats_of(bias), p.channels);
  out.unscale = download<float>(*rig.device, *rig.stream, unscale.data(), 1)[0];

  Values sum_of_y(p.channels, 0.0);
  for (std::size_t i = 0; i < p.y.values.size(); ++i) sum_of_y[i % p.channels] += p.y.values[i];
  const Buffer sums = rig.of(narrow(sum_of_y));
  const Buffer dw(*rig.device, p.filters * p.channels * element);
  gpu::gram_weight_gradient(m, norm, floats_of(gram), floats_of(sums), dw.data(), p.c.type,
                            rig.native());
  out.dw = rig.get(dw.view(p.c.type));

  if (!gpu::has_gram_conv_relu_backward(p.c.type, p.c.y.c, p.c.filters())) return out;
  const Buffer inner =
      rig.vectors_with(p.channels, {{0, p.inner_mean}, {2, p.inner_scale}, {3, p.inner_shift}});
  const Buffer dy = before_gram(rig, p, out.scaled).memory;
  const Buffer partials = rig.floats(gpu::reduction_scratch(p.c.y, p.c.type, 2));
  const int count = gpu::gram_conv_relu_backward(
      m, p.y.data(), p.g.data(), p.inner_z.data(), gpu::NormVectors::in(floats_of(inner), p.c.y.c),
      dy.data(), floats_of(partials), rig.on(p.c.y, p.c.type));
  out.dy = rig.get(dy.view(p.c.type));
  out.dy_sums = rig.totals(partials, count, 2 * p.channels);
  return out;
}

void check_sums(const Problem& p, const Outcome& out) {
  Values expected(2 * p.channels, 0.0), magnitude(2 * p.channels, 0.0);
  for (std::size_t i = 0; i < out.dy.size(); ++i) {
    const std::size_t j = i % p.channels;
    const double weighted = out.dy[i] * (p.inner_z.values[i] - p.inner_mean[j]);
    expected[j] += out.dy[i];
    expected[p.channels + j] += weighted;
    magnitude[j] += std::abs(out.dy[i]);
    magnitude[p.channels + j] += std::abs(weighted);
  }
  bool close = true;  // of the rounded dy: single additions, relative to what was added
  for (std::size_t i = 0; i < expected.size(); ++i)
    close = close && std::abs(out.dy_sums[i] - expected[i]) <= 1e-5 * magnitude[i] + 1e-9;
  CHECK(close);
}

/// H, a w and w'c of the coefficients that the GPU made.
void check_placed(const Problem& p, const Outcome& out) {
  const bool in_two = gpu::gram_in_two(p.c.y.c);
  const std::size_t depth = p.channels + (in_two ? 0 : p.filters);
  Values h, expected_h, aw, expected_aw, expected_bias;
  for (unsigned i = 0; i < p.channels; ++i) {
    const auto w = [&](std::size_t k, std::size_t of) { return p.w.values[k * p.channels + of]; };
    const double* row = out.placed.data() + gpu::placed_column(i) * depth;
    expected_bias.push_back(0);
    for (std::size_t j = 0; j < p.channels; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < p.filters; ++k) sum += out.b[k] * w(k, i) * w(k, j);
      h.push_back(row[j] * out.unscale);
      expected_h.push_back(sum);
    }
    for (std::size_t k = 0; k < p.filters; ++k) {
      aw.push_back(in_two ? out.scaled[k * p.channels + i] : row[p.channels + k]);
      expected_aw.push_back(out.a[k] * w(k, i));
      expected_bias.back() += out.c[k] * w(k, i);
    }
  }
  CHECK(relative_error(h, expected_h) < rounding(p.c.type));
  CHECK(relative_error(aw, expected_aw) < rounding(p.c.type));
  CHECK(relative_error(out.bias, expected_bias) < 1e-5);
}

void check(const Problem& p, const Outcome& out, std::size_t row_step, std::size_t filter_step) {
  const double limit = rounding(p.c.type);
  CHECK(relative_error(out.dgamma, p.dgamma) < limit);
  CHECK(relative_error(out.dbeta, p.sum_of_g) < limit);
  CHECK(relative_error(out.a, p.a) < 1e-5);
  CHECK(relative_error(out.b, p.b) < 1e-3);
  CHECK(relative_error(out.c, p.coefficient_c) < 1e-3);
  check_placed(p, out);
  Values dw, expected_dw;
  for (std::size_t k = 0; k < p.filters; k += filter_step) {
    const Values row = p.dw_of(k);
    expected_dw.insert(expected_dw.end(), row.begin(), row.end());
    const auto from = out.dw.begin() + (k * p.channels);
    dw.insert(dw.end(), from, from + static_cast<std::ptrdiff_t>(p.channels));
  }
  CHECK(relative_error(dw, expected_dw) < limit);
  if (out.dy.empty()) return;
  Values dy, expected_dy;
  std::size_t masked = 0;
  for (std::size_t row = 0; row < p.rows; row += row_step) {
    const Values line = p.dy_of(row);
    for (std::size_t j = 0; j < p.channels; ++j) {
      const double made = out.dy[row * p.channels + j];
      if (!p.passes(row, j)) masked += made != 0 ? 1 : 0;
      dy.push_back(made);
      expected_dy.push_back(line[j]);
    }
  }
  CHECK(masked == 0);
  CHECK(relative_error(dy, expected_dy) < limit);
  check_sums(p, out);
}

}  // namespace

GPU_TEST_CASE("a norm's gradients through the Gram matrix match float64", "[gram][kernels]") {
  Case c;
  c.type = GENERATE(DataType::float16, DataType::bfloat16);
  // fewer rows than a tile; a part of the last tile; only whole ones
  c.y = GENERATE(ActivationShape{3, 64, 3, 3}, ActivationShape{3, 128, 3, 3},
                 ActivationShape{4, 64, 15, 13}, ActivationShape{4, 128, 15, 13},
                 ActivationShape{16, 64, 8, 8}, ActivationShape{16, 128, 8, 8},
                 ActivationShape{3, 256, 3, 3}, ActivationShape{2, 256, 11, 13});
  CAPTURE(name_of(c.type), c.y.n, c.y.c, c.y.h);
  Rig rig;
  const Problem p(rig, c);
  const Outcome out = run(rig, p);
  check(p, out, 1, 1);
  const Outcome again = run(rig, p);
  CHECK(again.dy == out.dy);
  CHECK(again.dw == out.dw);
  CHECK(again.dy_sums == out.dy_sums);
}

GPU_TEST_CASE("sums of parts match float64, and a NaN stays in its column", "[gram][kernels]") {
  const int count = GENERATE(1, 31, 33, 129, 396);
  const std::size_t size = GENERATE(64U, 4128U);
  CAPTURE(count, size);
  Rig rig;
  std::vector<float> parts = random_values(static_cast<std::size_t>(count) * size, 1);
  Values expected(size, 0.0);
  for (std::size_t i = 0; i < parts.size(); ++i) expected[i % size] += parts[i];
  parts[parts.size() - 2] = std::nanf("");
  expected[size - 2] = std::nan("");
  CHECK(error_of_numbers(rig.totals(rig.of(parts), count, size), expected) < 1e-6);
}

GPU_TEST_CASE("D of parts as long as they may be matches float64", "[gram][kernels]") {
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  CAPTURE(name_of(type));
  constexpr std::size_t kRows = 2 * 12544;
  constexpr std::size_t kChannels = 64, kFilters = 256;
  Rig rig;
  const Tensor y = rig.rounded(type, positive_values(kRows * kChannels));
  const Tensor g = rig.rounded(type, random_values(kRows * kFilters, 2, -1, 1.2));
  gpu::BlasHandle blas(*rig.device, rig.native());
  const gpu::PartedProduct product(blas, {kRows, 2, kFilters, kChannels, type}, kWorkspace);
  REQUIRE(product.algorithms() > 0);
  const Buffer parts = rig.floats(2 * kFilters * kChannels);
  const Buffer workspace(*rig.device, kWorkspace);
  product.run(0, g.data(), y.data(), floats_of(parts), workspace.data(), rig.native());
  const Values made = rig.totals(parts, 2, kFilters * kChannels);
  Values some, expected;
  for (std::size_t k = 0; k < kFilters; k += 51)
    for (std::size_t j = 0; j < kChannels; ++j) {
      double sum = 0;
      for (std::size_t row = 0; row < kRows; ++row)
        sum += g.values[row * kFilters + k] * y.values[row * kChannels + j];
      some.push_back(made[k * kChannels + j]);
      expected.push_back(sum);
    }
  CHECK(relative_error(some, expected) < 2e-4);  // what dw is rounded by
}

GPU_TEST_CASE("the product of a norm through the Gram matrix is there on Hopper alone", "[gram]") {
  int major = 0;
  int minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  const bool hopper = major == 9 && minor == 0;
  CHECK(gpu::has_gram_conv_relu_backward(DataType::float16, 64, 256) == hopper);
  CHECK(gpu::has_gram_conv_relu_backward(DataType::bfloat16, 128, 512) == hopper);
  CHECK(gpu::has_gram_conv_relu_backward(DataType::float16, 256, 1024) == hopper);
  CHECK(!gpu::has_gram_conv_relu_backward(DataType::float32, 64, 256));
  CHECK(!gpu::has_gram_conv_relu_backward(DataType::float16, 512, 2048));
}

GPU_TEST_CASE("a norm through the Gram matrix over more rows than blocks take", "[gram]") {
  Case c{DataType::float16, {}};
  c.y = GENERATE(ActivationShape{16, 64, 45, 45}, ActivationShape{16, 128, 37, 37},
                 ActivationShape{16, 256, 21, 21});
  CAPTURE(c.y.c);
  Rig rig;
  const Problem p(rig, c);
  check(p, run(rig, p), 97, 51);
}

GPU_TEST_CASE("a NaN in the gradient goes through the Gram matrix", "[gram][nan]") {
  Rig rig;
  Problem p(rig, {DataType::float16, {4, 64, 15, 13}});
  auto values = narrow(p.g.values);
  values[1000] = std::nanf("");
  p.g = rig.rounded(p.c.type, values);
  p.sum_of_g[1000 % p.filters] = std::nan("");
  const Outcome out = run(rig, p);
  CHECK(std::isnan(out.dgamma[1000 % p.filters]));
  CHECK(std::isnan(out.dw[1000 % p.filters * p.channels]));
  if (!out.dy.empty())  // through H and the bias, everywhere
    CHECK(std::any_of(out.dy.begin(), out.dy.end(), [](double v) { return std::isnan(v); }));
}

GPU_TEST_CASE("a norm with ReLU and the sums of what it writes", "[gram][kernels]") {
  const DataType type = GENERATE(DataType::float32, DataType::float16, DataType::bfloat16);
  const ActivationShape shape =
      GENERATE(ActivationShape{3, 64, 5, 5}, ActivationShape{8, 128, 31, 33});
  CAPTURE(name_of(type), shape.c);
  Rig rig;
  const auto channels = static_cast<std::size_t>(shape.c);
  const Tensor z = rig.rounded(type, random_values(shape.count(), 1));
  const Values scale = widen(random_values(channels, 2, -1, 1));
  const Values shift = widen(random_values(channels, 3, -0.3, 0.3));
  const Buffer vectors = rig.vectors_with(channels, {{2, scale}, {3, shift}});
  const auto norm = gpu::NormVectors::in(floats_of(vectors), shape.c);
  const Buffer y(*rig.device, shape.count() * size_of(type));
  const Buffer plain(*rig.device, shape.count() * size_of(type));
  const Buffer partials = rig.floats(gpu::reduction_scratch(shape, type, 1));
  const gpu::Launch on = rig.on(shape, type);
  const int count = gpu::normalise_relu_sums(z.data(), norm, y.data(), floats_of(partials), on);
  gpu::normalise_relu(z.data(), norm, plain.data(), on);
  const Values written = rig.get(y.view(type));
  CHECK(written == rig.get(plain.view(type)));  // to the last bit
  Values expected(channels, 0.0);
  for (std::size_t i = 0; i < written.size(); ++i) expected[i % channels] += written[i];
  CHECK(relative_error(rig.totals(partials, count, channels), expected) < 1e-6);
}

// Where the threads of a product on wgmma find their rows and columns
// (resnet/gpu/fragment_places.hpp).

TEST_CASE("a thread's adjacent columns are those it has accumulators of", "[gram]") {
  const unsigned columns = GENERATE(64U, 128U);
  std::map<std::pair<unsigned, unsigned>, int> seen;  // row and column
  for (unsigned thread = 0; thread < 128; ++thread)
    for (unsigned q = 0; q < columns / 32; ++q)
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned v = 0; v < 8; ++v) {
          const unsigned row = gpu::fragment_row(thread, half);
          const unsigned column = q * 32 + gpu::fragment_column(thread) + v;
          const unsigned i = gpu::accumulator_of(q, half, v);
          REQUIRE(i < columns / 2);
          REQUIRE(hardware_row(thread, i) == row);
          REQUIRE(hardware_column(thread, i) == gpu::placed_column(column));
          ++seen[{row, column}];
        }
  CHECK(seen.size() == std::size_t{64} * columns);  // each once: there are as many accumulators
}

}  // namespace shakedown
