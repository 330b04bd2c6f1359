#include "training/predict/link_cost.hpp"

#include <limits>

#include "common/error.hpp"
#include "training/predict/affine_fit.hpp"

namespace shakedown::training {

Exchange ring_pass(int world_size) {
  ENSURE(world_size >= 1, "a world has a rank");
  const double others = world_size - 1;
  return {others, others / world_size};
}

Exchange ring_all_reduce(int world_size) {
  const Exchange pass = ring_pass(world_size);
  return {2 * pass.messages, 2 * pass.volume};
}

Exchange star_pass(int workers) {
  ENSURE(workers >= 0, "workers cannot be fewer than none");
  const double passes = workers;
  return {passes, passes};
}

ExchangeTime time_of(const Exchange& exchange, const LinkCost& link, double bytes_factor) {
  ENSURE(link.alpha_s >= 0 && link.bytes_per_s > 0 && bytes_factor >= 0, "a cost is not negative");
  return {1e3 * exchange.messages * link.alpha_s,
          1e3 * exchange.volume * bytes_factor / link.bytes_per_s};
}

LinkFit fit_link(const Exchange& exchange, std::span<const TransferPoint> points) {
  if (exchange.messages <= 0) throw UsageError("one rank exchanges nothing: its link has no cost");
  std::vector<Point> sizes;
  for (const TransferPoint& point : points) {
    ENSURE(point.bytes > 0, "libraries skip an exchange of nothing: it measures no latency");
    sizes.push_back({point.bytes, point.seconds});
  }
  AffineFit line = fit_affine(sizes);
  const double bytes_per_s =
      line.slope > 0 ? exchange.volume / line.slope : std::numeric_limits<double>::infinity();
  return {{line.offset / exchange.messages, bytes_per_s}, std::move(line.errors), line.outlier};
}

}  // namespace shakedown::training
