// The measurements of compute_perf: a round of each at a time, on all ranks together.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/fault.hpp"
#include "common/gpu_sampler.hpp"
#include "common/mpi_session.hpp"
#include "launch/node/compute/metrics.hpp"

namespace shakedown::node {

/// What every measurement needs.
struct Bench {
  Backend& backend;
  MpiSession& session;
  Stream& stream;
  std::shared_ptr<Nvml> nvml;
  std::string uuid;  // empty: no GPU
  double seconds = 2;
  std::optional<Fault> fault;  // of this rank

  Device& device() const { return *backend.device; }
  bool has(FaultKind kind) const { return fault && fault->kind == kind; }

  /// Waits for the stream, no longer than --timeout.
  void finish() const {
    const auto done = device().make_event();
    done->record(stream);
    backend.world->wait(*done, HostWait::polite);
  }

  /// Milliseconds that `body`, which enqueues on the stream, takes when it is called `runs` times.
  template <class Body>
  double time_ms(int runs, Body&& body) const {
    const auto start = device().make_event();
    const auto end = device().make_event();
    constexpr int kSlowed = 4;
    start->record(stream);
    for (int run = 0; run < runs * (has(FaultKind::slow) ? kSlowed : 1); ++run) body();
    end->record(stream);
    backend.world->wait(*end, HostWait::timed);
    return end->milliseconds_since(*start);
  }
};

/// A window of `ms` without the power that it cannot know: NVML's is the mean of the last second,
/// where no energy counter measures it.
inline GpuWindow readings_of(GpuWindow window, double ms) {
  constexpr double kAveraged_ms = 1000;
  if (ms < kAveraged_ms && !std::isfinite(window.energy_j)) window.power_w = kUnknown;
  return window;
}

/// One metric in one round.
struct Sample {
  double rate = kUnknown;
  GpuWindow window = {};              // while it was timed; unknown where that was too short
  double last_over_first = kUnknown;  // rates of its windows: 1 where it was steady
};

/// One metric on this rank.
struct Series {
  Metric metric;
  std::vector<Sample> samples;  // by round
  std::string wrong = "";       // the first error in what was computed or moved; empty: none
  std::string detail = "";      // the algorithm of a product, the NUMA node of host memory
};

class RateTest {
 public:
  virtual ~RateTest() = default;
  /// Appends a sample to each series: to those of a cool device by the first, before all tests'
  /// measure(). Collective: all ranks measure at the same time, or one after the other.
  virtual void measure_cool() {}
  virtual void measure() = 0;
  const std::vector<Series>& series() const { return series_; }
  /// Before measuring anew.
  void forget() {
    for (Series& one : series_) one.samples.clear();
  }

 protected:
  explicit RateTest(const std::vector<Metric>& metrics) {
    for (const Metric& metric : metrics) series_.push_back({metric, {}});
  }
  void note_wrong(std::size_t series, const std::string& text) {
    if (series_[series].wrong.empty()) series_[series].wrong = text;
  }

  std::vector<Series> series_;
};

/// Products of one type, n x n x n: `algorithm` as make_product has it.
std::unique_ptr<RateTest> make_product_test(const Bench& bench, ProductType type, int n,
                                            const std::string& algorithm);
/// Streams through three buffers of `bytes` each.
std::unique_ptr<RateTest> make_memory_test(const Bench& bench, std::size_t bytes);
/// Copies of `bytes` between pinned host memory and the device.
std::unique_ptr<RateTest> make_host_test(const Bench& bench, std::size_t bytes);

}  // namespace shakedown::node
