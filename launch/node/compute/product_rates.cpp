#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/sm_clock.hpp"
#include "common/statistics.hpp"
#include "launch/node/compute/rate_tests.hpp"
#include "launch/node/compute/verify.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kSeed = 21;
constexpr int kSamples = 16;  // elements that the host recomputes

/// How long products are timed, in seconds. Power finds its limit in the warm-up; cycles are
/// constant after the first batches.
struct Timing {
  double warmup, batch;
};
constexpr int kLeastBatches = 16;
constexpr int kDropped = 4;
constexpr int kQueued = 32;  // batches that the host does not wait for

Timing timing_of(const Bench& bench) {
  if (bench.device().kind() == BackendKind::gpu) return {0.3, 0.02};
  return {0.2 * bench.seconds, bench.seconds / kLeastBatches};
}

class ProductTest final : public RateTest {
 public:
  ProductTest(const Bench& bench, const ProductSpec& spec)
      : RateTest(product_metrics(spec.type, bench.device().kind())),
        bench_(bench),
        spec_(spec),
        product_(make_product(spec, bench.device(), bench.stream)),
        verifier_(spec, kSeed, bench.device(), bench.stream),
        clock_(make_sm_clock(bench.device(), kQueued)),
        rate_(series_.size() - 1) {
    for (Series& one : series_)
      one.conditions = {{"shape", fmt::format("{}x{}x{}", spec.m, spec.n, spec.k)},
                        {"algorithm", without_library(product_->algorithm())},
                        {"data", "random"}};
  }

  int rounds(int) const override { return 1; }

  void measure() override {
    product_->fill(Operands::full_entropy, kSeed, bench_.stream);
    bench_.finish();
    bench_.session.barrier();
    measure_sustained();
    check_sampled();
    check_exactly();
  }

 private:
  void run() { product_->run(bench_.stream); }

  void measure_sustained() {
    const Timing timing = timing_of(bench_);
    enqueue_batch(1, 0);  // kernels are loaded
    bench_.finish();
    if (clock_) clock_->readings(bench_.stream);
    const auto held = bench_.hold_sms();
    const auto runs_in = [](double seconds, double ms) {
      return std::max(1, static_cast<int>(std::ceil(1e3 * seconds / ms)));
    };
    double once_ms = time_alone(1);
    const int warmup = runs_in(timing.warmup, once_ms);
    once_ms = time_alone(warmup);
    const int runs = runs_in(timing.batch, once_ms);
    const int batches = std::max(kLeastBatches, runs_in(bench_.seconds, once_ms * runs));
    GpuSampler sampler(bench_.nvml, bench_.unit.uuid);
    first_ = true;
    for (int done = 0; done < batches;)
      done += measure_batches(std::min(kQueued, batches - done), runs, once_ms);
    const GpuWindow window = sampler.finish();
    for (Series& one : series_) {
      one.window = window;
      if (clock_ && !series_[1].samples.empty()) one.clock_mhz = median_of(series_[1].samples);
    }
  }

  /// Milliseconds of a product, without a fault's delays.
  double time_alone(int runs) {
    return bench_.time_ms([&] {
      for (int i = 0; i < runs; ++i) run();
    }) / runs;
  }

  void enqueue_batch(int runs, double once_ms) {
    if (clock_) clock_->start(bench_.stream);
    bench_.repeat(runs, once_ms, [&] { run(); });
    if (clock_) clock_->stop(bench_.stream);
  }

  /// One after the other, without a pause; the first ones of all are dropped.
  int measure_batches(int count, int runs, double once_ms) {
    std::vector<std::unique_ptr<Event>> events;
    const auto mark = [&] {
      events.push_back(bench_.device().make_event());
      events.back()->record(bench_.stream);
    };
    mark();
    for (int batch = 0; batch < count; ++batch) {
      enqueue_batch(runs, once_ms);
      mark();
    }
    bench_.backend.world->wait(*events.back(), HostWait::timed);
    const double flop = runs * flop_of(spec_);
    const auto sms = static_cast<double>(bench_.device().identity().compute_threads);
    const auto readings =
        clock_ ? clock_->readings(bench_.stream) : std::vector<SmClock::Reading>{};
    for (auto i = static_cast<std::size_t>(first_ ? kDropped : 0); i + 1 < events.size(); ++i) {
      const double ms = events[i + 1]->milliseconds_since(*events[i]);
      series_[rate_].samples.push_back(flop / ms / 1e9);
      if (!clock_) continue;
      if (!readings[i].unknown.empty()) {
        series_[0].unknown = series_[1].unknown = readings[i].unknown;
        continue;
      }
      series_[0].samples.push_back(flop / readings[i].cycles / sms);
      series_[1].samples.push_back(readings[i].clock_mhz);
    }
    first_ = false;
    return count;
  }

  /// Of the product that was timed.
  void check_sampled() {
    const double error =
        sampled_error(*product_, kSeed, kSamples, bench_.device(), bench_.stream, ++checks_);
    if (!(error <= tolerance(spec_.type)))
      note_all_wrong(
          fmt::format("an element of {} differs from the host's by {:.2g} deviations, "
                      "{:.2g} are allowed",
                      kSamples, error, tolerance(spec_.type)));
  }

  /// Of one with the same algorithm, right after: the device is still hot.
  void check_exactly() {
    bench_.device().zero(product_->c().data, product_->c().bytes(), bench_.stream);
    product_->fill(Operands::integers, kSeed, bench_.stream);
    run();
    bench_.finish();
    if (bench_.has(FaultKind::product))
      flip_bit(bench_.device(), bench_.stream, product_->c(), product_->c().count / 3, 3);
    note_all_wrong(text_of(verifier_.check(product_->c(), bench_.stream), spec_));
  }

  void note_all_wrong(const std::string& text) {
    for (std::size_t series = 0; series < series_.size(); ++series) note_wrong(series, text);
  }

  Bench bench_;
  ProductSpec spec_;
  std::unique_ptr<Product> product_;
  ProductVerifier verifier_;
  std::unique_ptr<SmClock> clock_;
  std::size_t rate_;   // the series of TFLOP/s
  bool first_ = true;  // of the batches of a look
  std::uint64_t checks_ = 0;
};

}  // namespace

std::unique_ptr<RateTest> make_product_test(const Bench& bench, const ProductSpec& spec) {
  return std::make_unique<ProductTest>(bench, spec);
}

}  // namespace shakedown::node
