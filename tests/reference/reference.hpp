// Naive loops in float64, N C H W and K C R S: what the units are checked against. Written for
// reading; nothing here is fast.
#pragma once

#include <cstdint>
#include <vector>

#include "resnet/architecture.hpp"

namespace shakedown::reference {

using Values = std::vector<double>;

Values convolve(const Values& x, const Values& w, const ConvShape& conv);
/// Gradients of sum(y * dy) by x and by w.
Values convolve_dx(const Values& dy, const Values& w, const ConvShape& conv);
Values convolve_dw(const Values& dy, const Values& x, const ConvShape& conv);

struct Normed {
  Values y;
  Values mean;      // of each channel over N, H, W
  Values variance;  // biased
};
Normed normalise(const Values& x, const ActivationShape& shape, const Values& gamma,
                 const Values& beta);
/// With given statistics (evaluation).
Values normalise_with(const Values& x, const ActivationShape& shape, const Values& gamma,
                      const Values& beta, const Values& mean, const Values& variance);
struct NormGradients {
  Values dx;
  Values dgamma;
  Values dbeta;
};
NormGradients normalise_backward(const Values& dy, const Values& x, const ActivationShape& shape,
                                 const Values& gamma);

Values add(const Values& a, const Values& b);
Values relu(const Values& x);
/// dy where y > 0, else 0.
Values relu_backward(const Values& dy, const Values& y);

/// 3x3, stride 2, padding 1.
Values max_pool(const Values& x, const ActivationShape& shape);
Values max_pool_backward(const Values& dy, const Values& x, const ActivationShape& shape);
/// Over all of H and W: N x C.
Values average_pool(const Values& x, const ActivationShape& shape);
Values average_pool_backward(const Values& dy, const ActivationShape& shape);

struct Loss {
  double sum = 0;  // over the samples with a label
  Values dlogits;  // of sum / n
  int top1 = 0;
  int top5 = 0;
};
Loss softmax_cross_entropy(const Values& logits, const std::vector<std::int32_t>& labels,
                           int classes, double smoothing);

}  // namespace shakedown::reference
