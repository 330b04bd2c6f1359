#include "tests/reference/reference.hpp"

#include <cmath>
#include <cstddef>
#include <limits>

namespace shakedown::reference {
namespace {

std::size_t at(const ActivationShape& s, int n, int c, int h, int w) {
  return ((static_cast<std::size_t>(n) * static_cast<std::size_t>(s.c) +
           static_cast<std::size_t>(c)) *
              static_cast<std::size_t>(s.h) +
          static_cast<std::size_t>(h)) *
             static_cast<std::size_t>(s.w) +
         static_cast<std::size_t>(w);
}

template <class Body>
void for_each(const ActivationShape& s, Body&& body) {
  for (int n = 0; n < s.n; ++n)
    for (int c = 0; c < s.c; ++c)
      for (int h = 0; h < s.h; ++h)
        for (int w = 0; w < s.w; ++w) body(n, c, h, w);
}

/// Calls body(index of x, index of w, index of y) for every product of the convolution.
template <class Body>
void for_each_product(const ConvShape& conv, Body&& body) {
  const ActivationShape y = conv.y();
  const ActivationShape filter{conv.k, conv.x.c, conv.kernel, conv.kernel};
  for_each(y, [&](int n, int k, int p, int q) {
    for (int c = 0; c < conv.x.c; ++c)
      for (int r = 0; r < conv.kernel; ++r)
        for (int s = 0; s < conv.kernel; ++s) {
          const int h = p * conv.stride - conv.pad + r;
          const int w = q * conv.stride - conv.pad + s;
          if (h < 0 || h >= conv.x.h || w < 0 || w >= conv.x.w) continue;
          body(at(conv.x, n, c, h, w), at(filter, k, c, r, s), at(y, n, k, p, q));
        }
  });
}

constexpr double kEpsilon = 1e-5;

}  // namespace

Values convolve(const Values& x, const Values& w, const ConvShape& conv) {
  Values y(conv.y().count(), 0.0);
  for_each_product(conv, [&](auto i, auto j, auto k) { y[k] += x[i] * w[j]; });
  return y;
}
Values convolve_dx(const Values& dy, const Values& w, const ConvShape& conv) {
  Values dx(conv.x.count(), 0.0);
  for_each_product(conv, [&](auto i, auto j, auto k) { dx[i] += dy[k] * w[j]; });
  return dx;
}
Values convolve_dw(const Values& dy, const Values& x, const ConvShape& conv) {
  Values dw(conv.weight_count(), 0.0);
  for_each_product(conv, [&](auto i, auto j, auto k) { dw[j] += dy[k] * x[i]; });
  return dw;
}

Normed normalise(const Values& x, const ActivationShape& shape, const Values& gamma,
                 const Values& beta) {
  const auto channels = static_cast<std::size_t>(shape.c);
  const double count = static_cast<double>(shape.count()) / shape.c;
  Normed result{{}, Values(channels, 0.0), Values(channels, 0.0)};
  for_each(shape, [&](int n, int c, int h, int w) {
    result.mean[static_cast<std::size_t>(c)] += x[at(shape, n, c, h, w)] / count;
  });
  for_each(shape, [&](int n, int c, int h, int w) {
    const double d = x[at(shape, n, c, h, w)] - result.mean[static_cast<std::size_t>(c)];
    result.variance[static_cast<std::size_t>(c)] += d * d / count;
  });
  result.y = normalise_with(x, shape, gamma, beta, result.mean, result.variance);
  return result;
}

Values normalise_with(const Values& x, const ActivationShape& shape, const Values& gamma,
                      const Values& beta, const Values& mean, const Values& variance) {
  Values y(x.size());
  for_each(shape, [&](int n, int c, int h, int w) {
    const auto i = static_cast<std::size_t>(c);
    y[at(shape, n, c, h, w)] =
        gamma[i] * (x[at(shape, n, c, h, w)] - mean[i]) / std::sqrt(variance[i] + kEpsilon) +
        beta[i];
  });
  return y;
}

NormGradients normalise_backward(const Values& dy, const Values& x, const ActivationShape& shape,
                                 const Values& gamma) {
  const auto channels = static_cast<std::size_t>(shape.c);
  const double count = static_cast<double>(shape.count()) / shape.c;
  const Normed forward = normalise(x, shape, gamma, Values(channels, 0.0));
  NormGradients g{Values(x.size()), Values(channels, 0.0), Values(channels, 0.0)};
  const auto standard = [&](int n, int c, int h, int w) {
    const auto i = static_cast<std::size_t>(c);
    return (x[at(shape, n, c, h, w)] - forward.mean[i]) / std::sqrt(forward.variance[i] + kEpsilon);
  };
  for_each(shape, [&](int n, int c, int h, int w) {
    const double d = dy[at(shape, n, c, h, w)];
    g.dbeta[static_cast<std::size_t>(c)] += d;
    g.dgamma[static_cast<std::size_t>(c)] += d * standard(n, c, h, w);
  });
  for_each(shape, [&](int n, int c, int h, int w) {
    const auto i = static_cast<std::size_t>(c);
    g.dx[at(shape, n, c, h, w)] = gamma[i] / std::sqrt(forward.variance[i] + kEpsilon) *
                                  (dy[at(shape, n, c, h, w)] - g.dbeta[i] / count -
                                   standard(n, c, h, w) * g.dgamma[i] / count);
  });
  return g;
}

Values add(const Values& a, const Values& b) {
  Values sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}
Values relu(const Values& x) {
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] > 0 ? x[i] : 0;
  return y;
}
Values relu_backward(const Values& dy, const Values& y) {
  Values dx(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) dx[i] = y[i] > 0 ? dy[i] : 0;
  return dx;
}

namespace {

/// Calls body(index of the window's highest element, index of y).
template <class Body>
void for_each_window(const Values& x, const ActivationShape& shape, Body&& body) {
  const ActivationShape y = pooled(shape);
  for_each(y, [&](int n, int c, int p, int q) {
    double highest = -std::numeric_limits<double>::infinity();
    std::size_t where = 0;
    for (int h = 2 * p - 1; h <= 2 * p + 1; ++h)
      for (int w = 2 * q - 1; w <= 2 * q + 1; ++w) {
        if (h < 0 || h >= shape.h || w < 0 || w >= shape.w) continue;
        const std::size_t i = at(shape, n, c, h, w);
        if (x[i] > highest) {
          highest = x[i];
          where = i;
        }
      }
    body(where, at(y, n, c, p, q));
  });
}

}  // namespace

Values max_pool(const Values& x, const ActivationShape& shape) {
  Values y(pooled(shape).count());
  for_each_window(x, shape, [&](std::size_t from, std::size_t to) { y[to] = x[from]; });
  return y;
}
Values max_pool_backward(const Values& dy, const Values& x, const ActivationShape& shape) {
  Values dx(x.size(), 0.0);
  for_each_window(x, shape, [&](std::size_t from, std::size_t to) { dx[from] += dy[to]; });
  return dx;
}

Values average_pool(const Values& x, const ActivationShape& shape) {
  Values y(static_cast<std::size_t>(shape.n * shape.c), 0.0);
  for_each(shape, [&](int n, int c, int h, int w) {
    y[static_cast<std::size_t>(n * shape.c + c)] += x[at(shape, n, c, h, w)] / (shape.h * shape.w);
  });
  return y;
}
Values average_pool_backward(const Values& dy, const ActivationShape& shape) {
  Values dx(shape.count());
  for_each(shape, [&](int n, int c, int h, int w) {
    dx[at(shape, n, c, h, w)] = dy[static_cast<std::size_t>(n * shape.c + c)] / (shape.h * shape.w);
  });
  return dx;
}

Loss softmax_cross_entropy(const Values& logits, const std::vector<std::int32_t>& labels,
                           int classes, double smoothing) {
  Loss loss;
  const auto n = static_cast<double>(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const double* row = logits.data() + i * static_cast<std::size_t>(classes);
    double sum = 0;
    for (int k = 0; k < classes; ++k) sum += std::exp(row[k]);
    int better = 0;
    for (int k = 0; k < classes; ++k) {
      if (labels[i] < 0) {
        loss.dlogits.push_back(0);
        continue;
      }
      const double target = smoothing / classes + (k == labels[i] ? 1 - smoothing : 0);
      loss.sum -= target * (row[k] - std::log(sum));
      loss.dlogits.push_back((std::exp(row[k]) / sum - target) / n);
      if (row[k] > row[labels[i]]) ++better;
    }
    if (labels[i] < 0) continue;
    loss.top1 += better < 1 ? 1 : 0;
    loss.top5 += better < 5 ? 1 : 0;
  }
  return loss;
}

}  // namespace shakedown::reference
