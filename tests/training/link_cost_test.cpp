#include "training/predict/link_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Times on a known link, of sizes from 1 KiB to 512 MiB, each off by up to `noise`.
std::vector<TransferPoint> measure(const Exchange& exchange, const LinkCost& link,
                                   double noise = 0) {
  Random random(7);
  std::vector<TransferPoint> points;
  for (double bytes = 1024; bytes <= 512 << 20; bytes *= 4) {
    const double factor = 1 + noise * (2 * random.uniform() - 1);
    points.push_back({bytes, time_of(exchange, link).ms(bytes) * 1e-3 * factor});
  }
  return points;
}

}  // namespace

TEST_CASE("exchanges count messages and volume", "[what_if]") {
  const auto check = [](const Exchange& exchange, double messages, double volume) {
    CHECK(exchange.messages == Approx(messages).margin(0));
    CHECK(exchange.volume == Approx(volume).margin(0));
  };
  check(ring_all_reduce(4), 6, 1.5);  // 2 * 3; 2 * 3/4
  check(ring_all_reduce(2), 2, 1);
  check(ring_pass(4), 3, 0.75);
  check(star_pass(3), 3, 3);
  check(ring_all_reduce(1), 0, 0);
  check(star_pass(0), 0, 0);
  check(chain_pass(4), 3, 1);
  check(chain_pass(1), 0, 0);
  CHECK_THROWS_AS(ring_pass(0), InternalError);
}

TEST_CASE("the time of an exchange", "[what_if]") {
  // 6 * 10 us + 1.5 * 100 MB / 10 GB/s = 0.06 ms + 15 ms
  const LinkCost link{1e-5, 1e10};
  CHECK(time_of(ring_all_reduce(4), link).ms(1e8) == Approx(15.06));
  CHECK(time_of(ring_all_reduce(4), link, 0.5).ms(1e8) == Approx(7.56));
  CHECK(time_of(ring_all_reduce(4), link).ms(0) == 0);  // not sent
  CHECK(time_of(ring_all_reduce(4), {1e-5, kInfinity}).ms(1e8) == Approx(0.06));
  CHECK(time_of(ring_all_reduce(1), link).ms(1e8) == 0);
  CHECK_THROWS_AS(time_of(ring_pass(2), {0, 0}), InternalError);
}

TEST_CASE("a fit finds the link it was measured on", "[what_if]") {
  const LinkCost link{12e-6, 4.5e10};
  for (const Exchange& exchange : {ring_all_reduce(8), ring_pass(8), star_pass(3), star_pass(7)}) {
    const LinkFit exact = fit_link(exchange, measure(exchange, link));
    CHECK(exact.link.alpha_s == Approx(link.alpha_s));
    CHECK(exact.link.bytes_per_s == Approx(link.bytes_per_s));
    CHECK(exact.worst_error < 1e-9);

    const auto points = measure(exchange, link, 0.03);
    const LinkFit noisy = fit_link(exchange, points);
    CHECK(noisy.link.alpha_s == Approx(link.alpha_s).epsilon(0.03));
    CHECK(noisy.link.bytes_per_s == Approx(link.bytes_per_s).epsilon(0.03));
    double worst = 0;
    for (const TransferPoint& point : points) {
      const double fitted_s = time_of(exchange, noisy.link).ms(point.bytes) * 1e-3;
      worst = std::max(worst, std::abs(fitted_s / point.seconds - 1));
    }
    CHECK(noisy.worst_error == Approx(worst));
    CHECK(worst > 0);
    CHECK(worst < 0.06);
  }
}

TEST_CASE("a fit by hand", "[what_if]") {
  // N = 2: t = 2 alpha + bytes / B; 20 us of latency, 100 us a megabyte
  const std::vector<TransferPoint> two{{1e6, 120e-6}, {3e6, 320e-6}};
  const LinkFit fit = fit_link(ring_all_reduce(2), two);
  CHECK(fit.link.alpha_s == Approx(10e-6));
  CHECK(fit.link.bytes_per_s == Approx(1e10));
  CHECK(fit.worst_error == Approx(0).margin(1e-12));

  // Falling times: no slope, the median time is all latency.
  const std::vector<TransferPoint> falling{{1e3, 1.1e-4}, {1e6, 0.9e-4}};
  const LinkFit flat = fit_link(ring_all_reduce(2), falling);
  CHECK(flat.link.alpha_s == Approx(1e-4 / 2));
  CHECK(flat.link.bytes_per_s == kInfinity);
  CHECK(flat.worst_error == Approx(1 / 0.9 - 1));

  // Faster than in proportion: no latency; 100 us a megabyte.
  const std::vector<TransferPoint> steep{{1e6, 0.5e-4}, {2e6, 1.5e-4}};
  const LinkFit through_zero = fit_link(ring_all_reduce(2), steep);
  CHECK(through_zero.link.alpha_s == 0);
  CHECK(through_zero.link.bytes_per_s == Approx(1e10));
}

TEST_CASE("one bad point moves little of a fit", "[what_if]") {
  const LinkCost link{12e-6, 4.5e10};
  const Exchange exchange = ring_all_reduce(8);
  for (const double factor : {0.5, 1.5, 3.0, 100.0}) {
    for (std::size_t i = 0; i < measure(exchange, link).size(); ++i) {
      auto points = measure(exchange, link, 0.02);
      points[i].seconds *= factor;
      const LinkFit fit = fit_link(exchange, points);
      CHECK(fit.link.alpha_s == Approx(link.alpha_s).epsilon(0.05));
      CHECK(fit.link.bytes_per_s == Approx(link.bytes_per_s).epsilon(0.05));
      CHECK(fit.worst_error == Approx(std::abs(1 / factor - 1)).epsilon(0.15));
    }
  }
}

TEST_CASE("a fit of measured all-reduces", "[what_if]") {
  // NCCL on two H200: medians of results/0.1/h200/collectives-2gpu.jsonl, out of place
  const std::vector<TransferPoint> measured{{4194304, 35.2e-6},   {8388608, 49.3e-6},
                                            {16777216, 78.0e-6},  {33554432, 143.7e-6},
                                            {67108864, 255.0e-6}, {134217728, 470.8e-6}};
  const LinkFit fit = fit_link(ring_all_reduce(2), measured);
  CHECK(fit.link.alpha_s == Approx(10.5e-6).epsilon(0.01));
  CHECK(fit.link.bytes_per_s == Approx(294e9).epsilon(0.01));
  CHECK(fit.worst_error < 0.065);
}

TEST_CASE("what cannot be fitted", "[what_if]") {
  const Exchange ring = ring_all_reduce(2);
  const auto fit = [&](std::vector<TransferPoint> points) { return fit_link(ring, points); };
  CHECK_THROWS_AS(fit({}), UsageError);
  CHECK_THROWS_AS(fit({{1e6, 1e-3}}), UsageError);
  CHECK_THROWS_AS(fit({{1e6, 1e-3}, {1e6, 1.1e-3}, {1e6, 0.9e-3}}), UsageError);
  CHECK_THROWS_AS(fit_link(ring_all_reduce(1), measure(ring, {1e-5, 1e10})), UsageError);
  CHECK_THROWS_AS(fit({{1e6, 0}, {2e6, 1e-3}}), InternalError);
  CHECK_THROWS_AS(fit({{0, 1e-6}, {1e6, 1e-4}, {2e6, 2e-4}}), InternalError);
  CHECK_THROWS_AS(fit({{-1, 1e-3}, {2e6, 1e-3}}), InternalError);
  CHECK_THROWS_AS(fit({{1e6, NAN}, {2e6, 1e-3}}), InternalError);
}

}  // namespace shakedown::training
