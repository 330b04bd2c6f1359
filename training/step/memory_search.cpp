#include "training/step/memory_search.hpp"

#include <algorithm>

namespace shakedown::training {
namespace {

struct Point {
  int batch;
  double bytes;
};

/// Where the line through two points comes to `limit`, between these bounds.
int crossing(Point a, Point b, double limit, int least, int most) {
  const double slope = (b.bytes - a.bytes) / (b.batch - a.batch);
  const double at = slope > 0 ? a.batch + (limit - a.bytes) / slope : most;
  return static_cast<int>(std::clamp<double>(at, least, most));
}

}  // namespace

int largest_fitting(std::size_t limit, int most, const std::function<std::size_t(int)>& bytes_of) {
  const auto allowed = static_cast<double>(limit);
  const auto ask = [&](int batch) { return Point{batch, static_cast<double>(bytes_of(batch))}; };
  Point fits{0, 0};  // what is known, nearest to the limit on either side
  Point other{0, 0};
  int too_large = most + 1;
  for (bool halve = false; fits.batch + 1 < too_large; halve = !halve) {
    int guess = std::min(2, too_large - 1);  // one image may be no batch: norms want two values
    if (fits.batch > 0 && halve && too_large <= most)
      guess = fits.batch + (too_large - fits.batch) / 2;  // should it be no line
    else if (fits.batch > 0)
      guess = crossing(fits, other, allowed, fits.batch + 1, too_large - 1);
    const Point asked = ask(guess);
    if (asked.bytes <= allowed) {
      if (too_large > most) other = fits;  // else it stays the one on the other side
      fits = asked;
    } else {
      too_large = guess;
      other = asked;
    }
  }
  return fits.batch;
}

}  // namespace shakedown::training
