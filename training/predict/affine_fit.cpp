#include "training/predict/affine_fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

constexpr double kStudentLimit = 5;       // residuals beyond this many deviations are outliers
constexpr double kLeastDeviation = 0.03;  // so that nothing less than 15 % off is ever left out
constexpr double kSameSize = 1e-9;        // of the normal equations' determinant: x all but equal
constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

double error_at(double offset, double slope, const Point& point) {
  return (offset + slope * point.x) / point.y - 1;
}

/// The normal equations of rows (1/y, x/y) and target 1: their residuals are relative errors.
struct Normal {
  double oo = 0, os = 0, ss = 0;  // products of the columns offset and slope
  double o = 0, s = 0;            // with the target
  double determinant() const { return oo * ss - os * os; }
  bool singular() const { return determinant() <= kSameSize * oo * ss; }

  /// How much of its own fitted value the point determines: 0..1.
  double leverage(const Point& point) const {
    const double a = 1 / point.y;
    const double b = point.x / point.y;
    return (ss * a * a - 2 * os * a * b + oo * b * b) / determinant();
  }
};

Normal normal_of(std::span<const Point> points, std::size_t left_out) {
  Normal n;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i == left_out) continue;
    const double a = 1 / points[i].y;
    const double b = points[i].x / points[i].y;
    n.oo += a * a;
    n.os += a * b;
    n.ss += b * b;
    n.o += a;
    n.s += b;
  }
  return n;
}

struct Line {
  double offset = 0;
  double slope = 0;
  double squares = std::numeric_limits<double>::infinity();  // of the relative errors
};

/// Where the free optimum has a negative parameter, the constrained one has a parameter at 0.
std::optional<Line> solve(std::span<const Point> points, std::size_t left_out) {
  const Normal n = normal_of(points, left_out);
  if (n.singular()) return std::nullopt;
  const Line candidates[] = {
      {(n.o * n.ss - n.s * n.os) / n.determinant(), (n.s * n.oo - n.o * n.os) / n.determinant()},
      {0, n.s / n.ss},
      {n.o / n.oo, 0}};
  Line best;
  for (Line line : candidates) {
    if (line.offset < 0 || line.slope < 0) continue;
    line.squares = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (i == left_out) continue;
      line.squares += std::pow(error_at(line.offset, line.slope, points[i]), 2);
    }
    if (line.squares < best.squares) best = line;
  }
  return best;
}

/// The point whose residual is the furthest beyond the limit, or nobody.
std::size_t find_outlier(std::span<const Point> points) {
  std::size_t outlier = kNobody;
  if (points.size() < 4) return outlier;  // any two points lie on a line: nobody could be blamed
  double worst = kStudentLimit;
  const Normal all = normal_of(points, kNobody);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::optional<Line> others = solve(points, i);
    if (!others) continue;  // the only one of its size
    const auto freedom = static_cast<double>(points.size() - 3);
    const double deviation = std::max(std::sqrt(others->squares / freedom), kLeastDeviation);
    const double error = error_at(others->offset, others->slope, points[i]);
    const double kept = std::sqrt(std::max(0.0, 1 - all.leverage(points[i])));
    const double student = std::abs(error) * kept / deviation;
    if (student <= worst) continue;
    worst = student;
    outlier = i;
  }
  return outlier;
}

}  // namespace

AffineFit fit_affine(std::span<const Point> points) {
  for (const Point& point : points) {
    ENSURE(std::isfinite(point.x) && point.x >= 0, "sizes are finite and not negative");
    ENSURE(std::isfinite(point.y) && point.y > 0, "measured times are finite and above 0");
  }
  const std::size_t outlier = find_outlier(points);
  const std::optional<Line> line = solve(points, outlier);
  if (!line) throw UsageError("a fixed time and a time per unit need measurements of two sizes");
  AffineFit fit;
  fit.offset = line->offset;
  fit.slope = line->slope;
  if (outlier != kNobody) fit.outlier = outlier;
  for (const Point& point : points) fit.errors.push_back(fit.at(point.x) / point.y - 1);
  return fit;
}

}  // namespace shakedown::training
