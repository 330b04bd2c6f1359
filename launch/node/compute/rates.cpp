#include "launch/node/compute/rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/statistics.hpp"
#include "launch/node/compute/verify.hpp"
#include "launch/node/health/facts/host_facts.hpp"

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
      : RateTest({}),
        bench_(bench),
        product_(make_product(spec, bench.device(), bench.stream)),
        verifier_(spec, kSeed, bench.device(), bench.stream),
        timer_(spec, bench.device(), bench.stream, kQueued) {
    series_ = series_with({});
  }

  int rounds(int) const override { return 1; }

  void measure() override {
    product_->fill({Operands::full_entropy, kSeed}, bench_.stream);
    bench_.finish();
    bench_.session.barrier();
    measure_sustained();
    check_sampled();
    check_exactly();
  }

 private:
  void run() { product_->run(bench_.stream); }
  std::vector<Series> series_with(const ProductRates& rates) const {
    return series_of(product_->spec(), product_->algorithm(), bench_.device().kind(), rates);
  }

  void measure_sustained() {
    const Timing timing = timing_of(bench_);
    time_batches(1, 1, 1, 0);  // kernels are loaded
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
    ProductRates rates;
    for (int done = 0; done < batches; done += kQueued)
      rates.add(
          time_batches(std::min(kQueued, batches - done), done == 0 ? kDropped : 0, runs, once_ms));
    const GpuWindow window = sampler.finish();
    std::vector<Series> measured = series_with(rates);
    for (std::size_t i = 0; i < series_.size(); ++i) {
      measured[i].window = window;
      measured[i].wrong = series_[i].wrong;
    }
    series_ = std::move(measured);
  }

  /// Milliseconds of a product, without a fault's delays.
  double time_alone(int runs) {
    return bench_.time_ms([&] {
      for (int i = 0; i < runs; ++i) run();
    }) / runs;
  }

  ProductRates time_batches(int batches, int dropped, int runs, double once_ms) {
    return timer_.time(
        batches, dropped, runs, [&] { bench_.repeat(runs, once_ms, [&] { run(); }); },
        [&](Event& end) { bench_.backend.world->wait(end, HostWait::timed); });
  }

  /// Of the product that was timed.
  void check_sampled() {
    const double error =
        sampled_error(*product_, kSeed, kSamples, bench_.device(), bench_.stream, ++checks_);
    if (!(error <= tolerance(product_->spec().type)))
      note_all_wrong(
          fmt::format("an element of {} differs from the host's by {:.2g} deviations, "
                      "{:.2g} are allowed",
                      kSamples, error, tolerance(product_->spec().type)));
  }

  /// Of one with the same algorithm, right after: the device is still hot.
  void check_exactly() {
    bench_.device().zero(product_->c().data, product_->c().bytes(), bench_.stream);
    product_->fill({Operands::integers, kSeed}, bench_.stream);
    run();
    bench_.finish();
    if (bench_.has(FaultKind::product))
      flip_bit(bench_.device(), bench_.stream, product_->c(), product_->c().count / 3, 3);
    note_all_wrong(text_of(verifier_.check(product_->c(), bench_.stream), product_->spec()));
  }

  void note_all_wrong(const std::string& text) {
    for (std::size_t series = 0; series < series_.size(); ++series) note_wrong(series, text);
  }

  Bench bench_;
  std::unique_ptr<Product> product_;
  ProductVerifier verifier_;
  ProductTimer timer_;
  std::uint64_t checks_ = 0;
};

}  // namespace

std::unique_ptr<RateTest> make_product_test(const Bench& bench, const ProductSpec& spec) {
  return std::make_unique<ProductTest>(bench, spec);
}

SupportedTests supported_tests(const std::vector<ProductType>& types, const MpiSession& session,
                               const std::function<std::unique_ptr<RateTest>(ProductType)>& make) {
  SupportedTests all;
  for (const ProductType type : types) {
    std::unique_ptr<RateTest> test;
    std::string refusal;
    try {
      test = make(type);
    } catch (const NotSupported& error) {
      refusal = error.what();
    }
    const std::vector<std::string> refusals = session.all_gather(refusal);
    const auto first = std::ranges::find_if(refusals, std::not_fn(&std::string::empty));
    if (first == refusals.end())
      all.tests.push_back(std::move(test));
    else
      all.remarks.push_back(fmt::format("N/A product/{}: rank {}: {}", name_of(type),
                                        first - refusals.begin(), *first));
  }
  return all;
}

namespace {

// Other work on a memory or a link only adds time: of several short samples, some have none.
constexpr double kSample_ms = 10;
constexpr int kMemorySamples = 2;  // of a round
constexpr int kHostSamples = 4;

View words(const Buffer& buffer) { return buffer.view(DataType::uint64); }

/// What both have: timing of one metric, and the check of a buffer.
class TransferTest : public RateTest {
 protected:
  TransferTest(const Bench& bench, const std::vector<Metric>& metrics)
      : RateTest(metrics),
        bench_(bench),
        checker_(bench.device(), 1),
        kernels_(checker_.kernels()) {}

  /// `moved`: bytes of each run of `body`. On the cpu backend a sample has one run.
  void measure_metric(std::size_t metric, int samples, std::size_t moved,
                      const std::function<void()>& body) {
    const bool gpu = bench_.device().kind() == BackendKind::gpu;
    bench_.time_ms(body);  // kernels are loaded
    const double once_ms = bench_.time_ms(body);
    const int runs = gpu ? std::max(1, static_cast<int>(kSample_ms / once_ms)) : 1;
    const auto held = bench_.hold_sms();
    for (int sample = 0; sample < samples; ++sample) {
      const double ms = bench_.time_ms([&] { bench_.repeat(runs, once_ms, body); });
      series_[metric].samples.push_back(runs * static_cast<double>(moved) / ms / 1e6);
    }
  }

  void check(std::size_t metric, const Buffer& buffer, const Ramp& ramp) {
    bench_.finish();
    const WordErrors found = checker_.check(words(buffer), ramp, bench_.stream);
    if (found.count > 0)
      note_wrong(metric, fmt::format("{} of {} words are wrong, the first is word {}", found.count,
                                     words(buffer).count, found.first));
  }

  /// With this fault, a bit of what a copy wrote.
  void spoil_copy(const Buffer& buffer) {
    if (bench_.has(FaultKind::copy))
      flip_bit(bench_.device(), bench_.stream, words(buffer), words(buffer).count / 3, 17);
  }

  /// Other words than ever before: what an earlier copy left cannot pass.
  Ramp next_ramp() { return {++ramps_ * 0xD1342543DE82EF95U}; }

  Bench bench_;
  WordChecker checker_;
  const ComputeKernels& kernels_;

 private:
  std::uint64_t ramps_ = 0;
};

class MemoryTest final : public TransferTest {
 public:
  MemoryTest(const Bench& bench, std::size_t bytes)
      : TransferTest(bench, memory_metrics()),
        x_(bench.device(), bytes),
        y_(bench.device(), bytes),
        z_(bench.device(), bytes),
        sum_(bench.device(), sizeof(std::uint64_t)) {
    for (Series& one : series_) {
      one.conditions = {{"bytes", std::to_string(bytes)}};
      one.peak = bench.unit.gpu.memory_gbs();
    }
  }

  void measure() override {
    const Ramp x = next_ramp();
    const Ramp y = {x.first, x.step ^ 0x5555555555555554U};
    Stream& stream = bench_.stream;
    const std::size_t bytes = x_.bytes();
    bench_.session.barrier();
    GpuSampler sampler(bench_.nvml, bench_.unit.uuid);
    measure_metric(1, kMemorySamples, bytes, [&] { kernels_.write(words(x_), x, stream); });
    check(1, x_, x);
    measure_read(x);
    measure_metric(2, kMemorySamples, 2 * bytes,
                   [&] { kernels_.copy(words(x_), words(z_), stream); });
    spoil_copy(z_);
    check(2, z_, x);
    kernels_.write(words(y_), y, stream);
    measure_metric(3, kMemorySamples, 3 * bytes,
                   [&] { kernels_.triad(words(x_), words(y_), words(z_), stream); });
    check(3, z_, triad_of(x, y));
    const GpuWindow window = sampler.finish();
    for (Series& one : series_) one.window = window;
  }

 private:
  /// Every reading adds to the sum, so all that were timed are checked.
  void measure_read(const Ramp& ramp) {
    auto* const sum = static_cast<std::uint64_t*>(sum_.data());
    std::uint64_t readings = 0;
    bench_.device().zero(sum, sum_.bytes(), bench_.stream);
    measure_metric(0, kMemorySamples, x_.bytes(), [&] {
      kernels_.read(words(x_), sum, bench_.stream);
      ++readings;
    });
    const auto found = download<std::uint64_t>(bench_.device(), bench_.stream, sum, 1).front();
    const std::uint64_t difference = found - readings * sum_of(ramp, words(x_).count);
    if (difference == 0) return;
    // Wrong alike in each reading: the same text on GPUs that read more or less often.
    note_wrong(0, difference % readings == 0
                      ? fmt::format("the sum of the words differs by {:016x} in each reading",
                                    difference / readings)
                      : fmt::format("the sum of the words differs by {:016x} over {} readings",
                                    difference, readings));
  }

  Buffer x_, y_, z_, sum_;
};

/// One direction, or both, between the device and host memory next to it.
class HostTest final : public TransferTest {
 public:
  HostTest(const Bench& bench, std::size_t bytes)
      : TransferTest(bench, host_metrics()),
        near_(std::make_unique<NearDevice>(bench.device().identity().pci_id)),
        host_source_(bench.device(), bytes, Place::host),
        host_target_(bench.device(), bytes, Place::host),
        device_source_(bench.device(), bytes),
        device_target_(bench.device(), bytes),
        second_(bench.device().make_stream()) {
    for (const Buffer* host :
         {&host_source_, &host_target_})  // first touched here, where it is near
      kernels_.write(words(*host), next_ramp(), bench.stream);
    bench.finish();
    const std::string& place = near_->text();
    for (std::size_t metric = 0; metric < series_.size(); ++metric) {
      Series& one = series_[metric];
      one.conditions = {{"bytes", std::to_string(bytes)}};
      if (metric >= std::size(kDirections))
        one.conditions["ranks_per_node"] = std::to_string(bench.session.local_size());
      one.path_class = place == kNumaUnknown         ? "unknown"
                       : place.starts_with(kNotNear) ? "far"
                                                     : "near";
      one.peak = bench.unit.gpu.pcie_gbs() * (metric % std::size(kDirections) == both ? 2 : 1);
    }
    near_.reset();
  }

  void measure() override {
    int most = 0;
    for (const double local : bench_.session.all_gather(bench_.session.local_size()))
      most = std::max(most, static_cast<int>(local));
    for (int turn = 0; turn < most; ++turn) {  // of each node
      bench_.session.barrier();
      if (bench_.session.local_rank() == turn)
        for (const Direction direction : kDirections) measure_direction(direction, 0);
    }
    for (const Direction direction : kDirections) {
      bench_.session.barrier();
      measure_direction(direction, std::size(kDirections));
    }
  }

 private:
  enum Direction { to_device, from_device, both };
  static constexpr Direction kDirections[] = {to_device, from_device, both};

  void measure_direction(Direction direction, std::size_t first_metric) {
    const std::size_t metric = first_metric + direction;
    const Ramp down = next_ramp();
    const Ramp up = next_ramp();
    Device& device = bench_.device();
    Stream& stream = bench_.stream;
    const std::size_t bytes = host_source_.bytes();
    kernels_.write(words(host_source_), down, stream);
    kernels_.write(words(device_source_), up, stream);
    const auto to = [&](Stream& on) {
      device.copy(device_target_.data(), host_source_.data(), bytes, on);
    };
    const auto from = [&](Stream& on) {
      device.copy(host_target_.data(), device_source_.data(), bytes, on);
    };
    const auto fork = device.make_event();
    const auto join = device.make_event();
    switch (direction) {
      case to_device: measure_metric(metric, kHostSamples, bytes, [&] { to(stream); }); break;
      case from_device: measure_metric(metric, kHostSamples, bytes, [&] { from(stream); }); break;
      case both:
        measure_metric(metric, kHostSamples, 2 * bytes, [&] {
          fork->record(stream);
          second_->wait(*fork);
          to(stream);
          from(*second_);
          join->record(*second_);
          stream.wait(*join);
        });
    }
    if (direction != from_device) {
      spoil_copy(device_target_);
      check(metric, device_target_, down);
    }
    if (direction != to_device) check(metric, host_target_, up);
  }

  std::unique_ptr<NearDevice> near_;  // while the memory is allocated
  Buffer host_source_, host_target_, device_source_, device_target_;
  std::unique_ptr<Stream> second_;
};

}  // namespace

std::unique_ptr<RateTest> make_memory_test(const Bench& bench, std::size_t bytes) {
  return std::make_unique<MemoryTest>(bench, bytes);
}

std::unique_ptr<RateTest> make_host_test(const Bench& bench, std::size_t bytes) {
  return std::make_unique<HostTest>(bench, std::min(bytes, kMostHostBytes));
}

void ProductRates::add(const ProductRates& more) {
  for (const auto samples :
       {&ProductRates::flop_per_cycle_sm, &ProductRates::clock_mhz, &ProductRates::tflops})
    (this->*samples).insert((this->*samples).end(), (more.*samples).begin(), (more.*samples).end());
  if (!more.unknown.empty()) unknown = more.unknown;
}

std::vector<Series> series_of(const ProductSpec& spec, const std::string& algorithm,
                              BackendKind kind, const ProductRates& rates) {
  std::vector<Series> all;
  for (const Metric& metric : product_metrics(spec.type, kind)) {
    const bool of_stream = metric.unit == "TFLOP/s";  // else of the SMs' counters
    Series& one = all.emplace_back(Series{metric});
    one.samples = of_stream              ? rates.tflops
                  : metric.unit == "MHz" ? rates.clock_mhz
                                         : rates.flop_per_cycle_sm;
    one.conditions = {{"shape", fmt::format("{}x{}x{}", spec.m, spec.n, spec.k)},
                      {"algorithm", without_library(algorithm)},
                      {"data", "random"}};
    if (!of_stream) one.unknown = rates.unknown;
    if (!rates.clock_mhz.empty()) one.clock_mhz = median_of(rates.clock_mhz);
  }
  return all;
}

ProductTimer::ProductTimer(const ProductSpec& spec, Device& device, Stream& stream, int most)
    : spec_(spec),
      device_(device),
      stream_(stream),
      clock_(make_sm_clock(device, static_cast<std::size_t>(most))) {}

ProductRates ProductTimer::time(int batches, int dropped, double products,
                                const std::function<void()>& enqueue,
                                const std::function<void(Event& end)>& wait) {
  std::vector<std::unique_ptr<Event>> events;
  for (int batch = 0; batch <= batches; ++batch) {
    if (batch > 0) {
      if (clock_) clock_->start(stream_);
      enqueue();
      if (clock_) clock_->stop(stream_);
    }
    events.push_back(device_.make_event());
    events.back()->record(stream_);
  }
  wait(*events.back());
  const double flop = products * flop_of(spec_);
  const auto sms = static_cast<double>(device_.identity().compute_threads);
  const auto readings = clock_ ? clock_->readings(stream_) : std::vector<SmClock::Reading>{};
  ProductRates rates;
  for (auto i = static_cast<std::size_t>(dropped); i + 1 < events.size(); ++i) {
    rates.tflops.push_back(flop / events[i + 1]->milliseconds_since(*events[i]) / 1e9);
    if (!clock_) continue;
    if (!readings[i].unknown.empty()) {
      rates.unknown = readings[i].unknown;
      continue;
    }
    rates.flop_per_cycle_sm.push_back(flop / readings[i].cycles / sms);
    rates.clock_mhz.push_back(readings[i].clock_mhz);
  }
  return rates;
}

std::vector<Metric> product_metrics(ProductType type, BackendKind kind) {
  const std::string product = fmt::format("product/{}/", name_of(type));
  const Metric rate{product + "tflops", "TFLOP/s"};
  if (kind == BackendKind::cpu) return {rate};
  return {{product + "flop_per_cycle_sm", "FLOP/cycle/SM"}, {product + "clock_mhz", "MHz"}, rate};
}

std::vector<Metric> memory_metrics() {
  std::vector<Metric> metrics;
  for (const char* access : {"read", "write", "copy", "triad"})
    metrics.push_back({fmt::format("memory/{}", access), "GB/s"});
  return metrics;
}

std::vector<Metric> host_metrics() {
  std::vector<Metric> metrics;
  for (const char* manner : {"alone", "all_at_once"})
    for (const char* direction : {"to_device", "from_device", "both"})
      metrics.push_back({fmt::format("host_link/{}/{}", direction, manner), "GB/s"});
  return metrics;
}

}  // namespace shakedown::node
