#include "training/predict/link_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/error.hpp"
#include "common/statistics.hpp"

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
  return {static_cast<double>(workers), static_cast<double>(workers)};
}

Exchange chain_pass(int world_size) {
  return {ring_pass(world_size).messages, world_size > 1 ? 1.0 : 0.0};
}

ExchangeTime time_of(const Exchange& exchange, const LinkCost& link, double bytes_factor) {
  ENSURE(link.alpha_s >= 0 && link.bytes_per_s > 0 && bytes_factor >= 0, "a cost is not negative");
  return {1e3 * exchange.messages * link.alpha_s,
          1e3 * exchange.volume * bytes_factor / link.bytes_per_s};
}

LinkFit fit_link(const Exchange& exchange, std::span<const TransferPoint> points) {
  if (exchange.messages <= 0) throw UsageError("one rank exchanges nothing: its link has no cost");
  std::vector<double> slopes;
  for (const TransferPoint& a : points) {
    ENSURE(std::isfinite(a.bytes) && a.bytes > 0 && std::isfinite(a.seconds) && a.seconds > 0,
           "an exchange of some bytes takes time");
    for (const TransferPoint& b : points)
      if (a.bytes < b.bytes) slopes.push_back((b.seconds - a.seconds) / (b.bytes - a.bytes));
  }
  if (slopes.empty()) throw UsageError("a latency and a bandwidth need exchanges of two sizes");
  const double slope = std::max(0.0, median_of(slopes));
  std::vector<double> rests;
  for (const TransferPoint& point : points) rests.push_back(point.seconds - slope * point.bytes);
  const double latency = std::max(0.0, median_of(rests));

  LinkFit fit{{latency / exchange.messages, std::numeric_limits<double>::infinity()}, 0};
  if (slope > 0) fit.link.bytes_per_s = exchange.volume / slope;
  for (const TransferPoint& point : points)
    fit.worst_error =
        std::max(fit.worst_error, std::abs((latency + slope * point.bytes) / point.seconds - 1));
  return fit;
}

}  // namespace shakedown::training
