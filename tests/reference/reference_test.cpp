// The naive backward loops against central differences of the naive forward loops, in float64.
#include "tests/reference/reference.hpp"

#include <functional>

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

using reference::Values;

Values values(std::size_t count, std::uint64_t seed) {
  return test::widen(test::random_values(count, seed));
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Relative error of `gradient` against differences of `loss` by every element of x.
double difference_error(const Values& x, const Values& gradient,
                        const std::function<double(const Values&)>& loss) {
  constexpr double kStep = 1e-5;
  Values numeric;
  Values moved = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + kStep;
    const double above = loss(moved);
    moved[i] = x[i] - kStep;
    numeric.push_back((above - loss(moved)) / (2 * kStep));
    moved[i] = x[i];
  }
  return test::relative_error(gradient, numeric);
}

constexpr double kLimit = 1e-7;

}  // namespace

TEST_CASE("convolution", "[reference]") {
  const int kernel = GENERATE(1, 3);
  const int stride = GENERATE(1, 2);
  const ConvShape conv{{2, 3, 5, 6}, 4, kernel, stride, kernel / 2};
  const Values x = values(conv.x.count(), 1);
  const Values w = values(conv.weight_count(), 2);
  const Values dy = values(conv.y().count(), 3);
  CHECK(difference_error(x, reference::convolve_dx(dy, w, conv), [&](const Values& at) {
          return dot(reference::convolve(at, w, conv), dy);
        }) < kLimit);
  CHECK(difference_error(w, reference::convolve_dw(dy, x, conv), [&](const Values& at) {
          return dot(reference::convolve(x, at, conv), dy);
        }) < kLimit);
}

TEST_CASE("batch normalisation", "[reference]") {
  const ActivationShape shape{3, 2, 3, 4};
  const Values x = values(shape.count(), 1);
  const Values gamma = values(2, 2);
  const Values beta = values(2, 3);
  const Values dy = values(shape.count(), 4);
  const auto g = reference::normalise_backward(dy, x, shape, gamma);
  CHECK(difference_error(x, g.dx, [&](const Values& at) {
          return dot(reference::normalise(at, shape, gamma, beta).y, dy);
        }) < 1e-6);
  CHECK(difference_error(gamma, g.dgamma, [&](const Values& at) {
          return dot(reference::normalise(x, shape, at, beta).y, dy);
        }) < kLimit);
  CHECK(difference_error(beta, g.dbeta, [&](const Values& at) {
          return dot(reference::normalise(x, shape, gamma, at).y, dy);
        }) < kLimit);
}

TEST_CASE("ReLU and pools", "[reference]") {
  const ActivationShape shape{2, 3, GENERATE(4, 5), 5};
  const Values x = values(shape.count(), 1);
  const Values dy = values(shape.count(), 2);
  CHECK(difference_error(x, reference::relu_backward(dy, reference::relu(x)),
                         [&](const Values& at) { return dot(reference::relu(at), dy); }) < kLimit);
  const Values dpooled = values(pooled(shape).count(), 3);
  CHECK(difference_error(x, reference::max_pool_backward(dpooled, x, shape), [&](const Values& at) {
          return dot(reference::max_pool(at, shape), dpooled);
        }) < kLimit);
  const Values dfeatures = values(6, 4);
  CHECK(difference_error(x, reference::average_pool_backward(dfeatures, shape),
                         [&](const Values& at) {
                           return dot(reference::average_pool(at, shape), dfeatures);
                         }) < kLimit);
}

TEST_CASE("softmax cross-entropy", "[reference]") {
  const double smoothing = GENERATE(0.0, 0.1);
  const std::vector<std::int32_t> labels{2, -1, 0};
  const Values logits = values(12, 1);
  const auto loss = reference::softmax_cross_entropy(logits, labels, 4, smoothing);
  CHECK(difference_error(logits, loss.dlogits, [&](const Values& at) {
          return reference::softmax_cross_entropy(at, labels, 4, smoothing).sum / 3;
        }) < kLimit);
  CHECK(loss.top5 == 2);
}

}  // namespace shakedown
