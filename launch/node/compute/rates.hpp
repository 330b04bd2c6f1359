// What compute_perf measures on each GPU: names and units as in results/reference/limits.json.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/kernels.hpp"
#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/program.hpp"
#include "common/sm_clock.hpp"
#include "common/units.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

struct Metric {
  std::string name;  // "product/bf16/flop_per_cycle_sm"
  std::string unit;
};

/// FLOP per SM cycle and SM, the clock of the SMs, and the rate. On the cpu backend the rate alone.
std::vector<Metric> product_metrics(ProductType type, BackendKind kind);
/// Read, write, copy, triad: in the order of MemoryTest.
std::vector<Metric> memory_metrics();
/// To the device, from it, both at once: each GPU alone; then the same of all GPUs at once.
std::vector<Metric> host_metrics();

// The measurements of compute_perf, on all ranks together.

/// What every measurement needs.
struct Bench {
  Backend& backend;
  MpiSession& session;
  Stream& stream;
  std::shared_ptr<Nvml> nvml;
  Unit unit;  // this rank's
  double seconds = 2;
  std::optional<Fault> fault;              // of this rank
  std::shared_ptr<Buffer> busy = nullptr;  // a DuplexTime: for idle time

  Device& device() const { return *backend.device; }
  bool has(FaultKind kind) const { return fault && fault->kind == kind; }

  /// Waits for the stream, no longer than --timeout.
  void finish() const {
    const auto done = device().make_event();
    done->record(stream);
    backend.world->wait(*done, HostWait::polite);
  }

  /// Enqueues `body` `runs` times. With `slow` it is run four times each time, or the stream is
  /// idle after each for a share of `once_ms`.
  template <class Body>
  void repeat(int runs, double once_ms, Body&& body) const {
    constexpr int kSlowed = 4;
    const bool slow = has(FaultKind::slow);
    const auto idle_ns = slow ? static_cast<std::uint64_t>(1e6 * once_ms * fault->idle_share) : 0;
    const bool by_work = slow && fault->idle_share == 0 && fault->held_sms == 0;
    for (int run = 0; run < runs; ++run) {
      for (int again = 0; again < (by_work ? kSlowed : 1); ++again) body();
      if (idle_ns > 0)
        device().kernels().occupy_link(static_cast<DuplexTime*>(busy->data()), {idle_ns, 0},
                                       stream);
    }
  }
  /// With `slow`, the SMs that are held from here on; else null. What runs meanwhile has run
  /// before.
  std::unique_ptr<HeldSms> hold_sms() const {
    if (!has(FaultKind::slow) || fault->held_sms == 0) return nullptr;
    return std::make_unique<HeldSms>(device(), fault->held_sms);
  }

  /// Milliseconds that what `enqueue` enqueues on the stream takes.
  template <class Enqueue>
  double time_ms(Enqueue&& enqueue) const {
    constexpr double kLeast_ms = 1e-6;
    const auto start = device().make_event();
    const auto end = device().make_event();
    start->record(stream);
    enqueue();
    end->record(stream);
    backend.world->wait(*end, HostWait::timed);
    return std::max(end->milliseconds_since(*start), kLeast_ms);
  }
};

/// One metric on this rank.
struct Series {
  Metric metric;
  std::vector<double> samples = {};                    // of this look
  std::map<std::string, std::string> conditions = {};  // as judge::Observation has them
  std::string path_class = "";
  double peak = kUnknown;       // in the metric's unit
  std::string wrong = "";       // the first error in what was computed or moved; empty: none
  std::string unknown = "";     // why there is no sample
  double clock_mhz = kUnknown;  // by the SMs' counters
  GpuWindow window = {};        // the last one
};

/// Of batches of one type's products, one element per batch: the quantities of product/T/... On the
/// cpu backend the rate alone.
struct ProductRates {
  std::vector<double> flop_per_cycle_sm, clock_mhz, tflops;
  std::string unknown = "";  // why some batches have no cycles
  void add(const ProductRates& more);
};
/// A series of each of the type's metrics.
std::vector<Series> series_of(const ProductSpec& spec, const std::string& algorithm,
                              BackendKind kind, const ProductRates& rates);

/// Times batches of products, one after the other without a pause.
class ProductTimer {
 public:
  /// At most `most` batches at a time.
  ProductTimer(const ProductSpec& spec, Device& device, Stream& stream, int most);
  /// `enqueue` enqueues a batch of this many products; `wait` waits for the end of the last one.
  /// The first `dropped` batches have no rates.
  ProductRates time(int batches, int dropped, double products, const std::function<void()>& enqueue,
                    const std::function<void(Event& end)>& wait);

 private:
  ProductSpec spec_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<SmClock> clock_;  // null on the cpu backend
};

class RateTest {
 public:
  virtual ~RateTest() = default;
  /// Appends samples to each series. Collective: all ranks measure at the same time, or one after
  /// the other.
  virtual void measure() = 0;
  /// How often it is measured, of `rounds` at most.
  virtual int rounds(int rounds) const { return rounds; }
  const std::vector<Series>& series() const { return series_; }
  /// Before measuring anew.
  void forget() {
    for (Series& one : series_) one.samples.clear();
  }

 protected:
  explicit RateTest(const std::vector<Metric>& metrics) {
    for (const Metric& metric : metrics) series_.push_back({metric});
  }
  void note_wrong(std::size_t series, const std::string& text) {
    if (series_[series].wrong.empty()) series_[series].wrong = text;
  }

  std::vector<Series> series_;
};

std::unique_ptr<RateTest> make_product_test(const Bench& bench, const ProductSpec& spec);
struct SupportedTests {
  std::vector<std::unique_ptr<RateTest>> tests;
  std::vector<std::string> remarks;  // a line for each type that is left out
};
/// What `make` makes of each type, without those that some rank's library does not support: the
/// remark has its words. Collective.
SupportedTests supported_tests(const std::vector<ProductType>& types, const MpiSession& session,
                               const std::function<std::unique_ptr<RateTest>(ProductType)>& make);
/// Streams through three buffers of `bytes` each.
std::unique_ptr<RateTest> make_memory_test(const Bench& bench, std::size_t bytes);
/// Copies of `bytes`, of kMostHostBytes at most, between pinned host memory and the device.
inline constexpr std::size_t kMostHostBytes = std::size_t{256} << 20;
std::unique_ptr<RateTest> make_host_test(const Bench& bench, std::size_t bytes);

}  // namespace shakedown::node
