// A norm through the Gram matrix and its gradients, in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/resnet/gpu/kernel_rig.hpp"

namespace shakedown::test {

struct GramCase {
  DataType type;
  ActivationShape y;  // c is 64, 128 or 256
  int filters() const { return 4 * y.c; }
  std::size_t rows() const { return y.count() / static_cast<std::size_t>(y.c); }
};

/// y after a ReLU, g half of which is masked, weights, and the norms after and before the
/// convolution, in float64: what dz, dy, dw and the norms' gradients are.
struct GramProblem {
  GramCase c;
  std::size_t rows, channels, filters;
  Tensor y, g, w, inner_z;
  std::vector<float> gamma;
  Values mean, invstd;  // of z = y w'
  Values sum_of_g, dgamma, a, b, coefficient_c;
  Values inner_scale, inner_shift, inner_mean;

  GramProblem(KernelRig& rig, const GramCase& of)
      : c(of),
        rows(of.rows()),
        channels(static_cast<std::size_t>(of.y.c)),
        filters(static_cast<std::size_t>(of.filters())) {
    auto positive = random_values(rows * channels, 1, -1, 1.5);
    for (float& v : positive) v = std::max(v, 0.0F);
    y = rig.rounded(c.type, positive);
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

}  // namespace shakedown::test
