// Shapes of activations and convolutions. Counts are elements, whatever layout a backend gives
// them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shakedown {

struct ActivationShape {
  int n = 0;
  int c = 0;
  int h = 0;
  int w = 0;

  std::size_t count() const {
    return static_cast<std::size_t>(n) * static_cast<std::size_t>(c) * static_cast<std::size_t>(h) *
           static_cast<std::size_t>(w);
  }
  bool operator==(const ActivationShape&) const = default;
};

/// A square convolution without bias: x is N C H W, w is K C R S with R = S = kernel.
struct ConvShape {
  ActivationShape x;
  int k = 0;
  int kernel = 1;
  int stride = 1;
  int pad = 0;

  int out(int in) const { return (in + 2 * pad - kernel) / stride + 1; }
  ActivationShape y() const { return {x.n, k, out(x.h), out(x.w)}; }
  std::size_t weight_count() const {
    return static_cast<std::size_t>(k) * static_cast<std::size_t>(x.c) *
           static_cast<std::size_t>(kernel) * static_cast<std::size_t>(kernel);
  }
  /// FLOP of the forward pass, a multiply and an add counted as two. Each of the backward pass's
  /// two convolutions (data gradient, weight gradient) has the same number.
  double flop() const { return 2.0 * static_cast<double>(y().count()) * x.c * kernel * kernel; }
  bool operator==(const ConvShape&) const = default;
};

/// Every stride-th row and column, from the first on.
inline ActivationShape strided(const ActivationShape& x, int stride) {
  return {x.n, x.c, (x.h - 1) / stride + 1, (x.w - 1) / stride + 1};
}

/// The stem's max-pooling: 3x3, stride 2, padding 1.
inline ActivationShape pooled(const ActivationShape& x) {
  return {x.n, x.c, (x.h - 1) / 2 + 1, (x.w - 1) / 2 + 1};
}

}  // namespace shakedown
