#include <fmt/format.h>

#include <algorithm>

#include "common/statistics.hpp"
#include "launch/node/compute/rate_tests.hpp"
#include "launch/node/compute/verify.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kSeed = 21;
constexpr int kBurstWarmup = 3;
constexpr int kBurst = 10;
constexpr int kWindows = 5;
constexpr double kWarmup = 0.2;  // of the time that is measured: power finds its limit
constexpr int kSamples = 16;     // elements that the host recomputes

class ProductTest final : public RateTest {
 public:
  ProductTest(const Bench& bench, ProductType type, int n, const std::string& algorithm)
      : RateTest(product_metrics(type)),
        bench_(bench),
        spec_{type, n, n, n},
        product_(make_product(spec_, bench.device(), bench.stream, algorithm)),
        verifier_(spec_, kSeed, bench.device(), bench.stream) {
    for (Series& one : series_) one.detail = product_->algorithm();
  }

  void measure_cool() override {
    fill();
    time_products(kBurstWarmup);
    const double ms = time_products(kBurst);
    series_[0].samples.push_back({rate(ms, kBurst)});  // too short for NVML's readings
    product_ms_ = ms / kBurst;
  }

  void measure() override {
    fill();
    measure_sustained();
    check_sampled();
    check_exactly();
  }

 private:
  void fill() {
    product_->fill(Operands::full_entropy, kSeed, bench_.stream);
    bench_.finish();
    bench_.session.barrier();
  }
  double time_products(int runs) {
    return bench_.time_ms(runs, [&] { product_->run(bench_.stream); });
  }
  double rate(double ms, int runs) const { return runs * flop_of(spec_) / ms / 1e9; }

  /// The median of the windows: what the first of them has of the load before does not count.
  void measure_sustained() {
    const auto runs_in = [&](double seconds) {
      return std::max(1, static_cast<int>(1e3 * seconds / product_ms_));
    };
    const int warmup = runs_in(kWarmup * bench_.seconds);
    product_ms_ = time_products(warmup) / warmup;  // slower than a cool device's
    const int runs = runs_in(bench_.seconds / kWindows);
    GpuSampler sampler(bench_.nvml, bench_.uuid);
    std::vector<double> rates;
    for (int window = 0; window < kWindows; ++window)
      rates.push_back(rate(time_products(runs), runs));
    series_[1].samples.push_back({median_of(rates),
                                  readings_of(sampler.finish(), 1e3 * bench_.seconds),
                                  rates.back() / rates.front()});
  }

  /// Of the product that was timed.
  void check_sampled() {
    const double error =
        sampled_error(*product_, kSeed, kSamples, bench_.device(), bench_.stream, ++checks_);
    if (!(error <= tolerance(spec_.type)))
      note_wrong(1, fmt::format("an element of {} differs from the host's by {:.2g} deviations, "
                                "{:.2g} are allowed",
                                kSamples, error, tolerance(spec_.type)));
  }

  /// Of one with the same algorithm, right after: the device is still hot.
  void check_exactly() {
    bench_.device().zero(product_->c().data, product_->c().bytes(), bench_.stream);
    product_->fill(Operands::integers, kSeed, bench_.stream);
    product_->run(bench_.stream);
    bench_.finish();
    if (bench_.has(FaultKind::product))
      flip_bit(bench_.device(), bench_.stream, product_->c(), product_->c().count / 3, 3);
    note_wrong(1, text_of(verifier_.check(product_->c(), bench_.stream), spec_));
  }

  Bench bench_;
  ProductSpec spec_;
  std::unique_ptr<Product> product_;
  ProductVerifier verifier_;
  double product_ms_ = 0;  // as last timed
  std::uint64_t checks_ = 0;
};

}  // namespace

std::unique_ptr<RateTest> make_product_test(const Bench& bench, ProductType type, int n,
                                            const std::string& algorithm) {
  return std::make_unique<ProductTest>(bench, type, n, algorithm);
}

}  // namespace shakedown::node
