// A line through measured points where what counts is the relative error.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace shakedown::training {

struct Point {
  double x = 0;
  double y = 0;
};

/// y = offset + slope * x, neither negative.
struct AffineFit {
  double offset = 0;
  double slope = 0;
  std::vector<double> errors;          // of each point: fitted / measured - 1
  std::optional<std::size_t> outlier;  // the point that was left out of the fit
  double at(double x) const { return offset + slope * x; }
};

/// Minimises the sum of squared relative errors, with both parameters held at 0 or above
/// (non-negative least squares, Lawson & Hanson 1974). Of four points or more, the one that lies
/// furthest from the line through the others is left out when its externally studentized residual
/// (Cook & Weisberg 1982) says that it is an outlier.
/// Throws UsageError on fewer than two distinct x, InternalError where x < 0 or y <= 0.
AffineFit fit_affine(std::span<const Point> points);

}  // namespace shakedown::training
