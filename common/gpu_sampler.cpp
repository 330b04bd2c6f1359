#include "common/gpu_sampler.hpp"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "common/statistics.hpp"

namespace shakedown {
namespace {

std::vector<double> known(const std::vector<GpuSample>& samples, double GpuSample::*reading) {
  std::vector<double> values;
  for (const GpuSample& sample : samples)
    if (std::isfinite(sample.*reading)) values.push_back(sample.*reading);
  return values;
}

std::optional<std::uint64_t> any_reason(const std::vector<GpuSample>& samples) {
  std::uint64_t seen = 0;
  bool all_known = true;
  for (const GpuSample& sample : samples) {
    seen |= sample.throttle_reasons.value_or(0);
    all_known = all_known && sample.throttle_reasons;
  }
  return all_known || seen != 0 ? std::optional(seen) : std::nullopt;
}

}  // namespace

double mean_power_w(const std::vector<EnergyReading>& readings) {
  const EnergyReading* first = nullptr;
  const EnergyReading* last = nullptr;
  for (std::size_t i = 1; i < readings.size(); ++i) {
    if (!(readings[i].energy_j > readings[i - 1].energy_j)) continue;  // not updated, or unknown
    if (first == nullptr) first = &readings[i];
    last = &readings[i];
  }
  if (first == last) return kUnknown;
  return (last->energy_j - first->energy_j) / (last->time_s - first->time_s);
}

struct GpuSampler::State {
  std::shared_ptr<Nvml> nvml;
  std::string uuid;
  std::vector<GpuSample> samples;
  std::vector<EnergyReading> energy;
  std::chrono::steady_clock::time_point start;
  NvlinkBytes nvlink_before;
  bool stop = false;
  std::mutex mutex;
  std::condition_variable stopped;
  std::thread thread;

  bool reads() const { return nvml && !uuid.empty(); }
  NvlinkBytes nvlink() const { return reads() ? nvml->nvlink_bytes(uuid) : NvlinkBytes{}; }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run() {
    std::unique_lock lock(mutex);
    do {
      const double time_s = seconds();
      samples.push_back(nvml->sample(uuid));
      energy.push_back({time_s, samples.back().energy_j});
    } while (!stopped.wait_for(lock, std::chrono::milliseconds(100), [this] { return stop; }));
  }

  void join() {
    if (!thread.joinable()) return;
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    stopped.notify_all();
    thread.join();
  }
};

GpuSampler::GpuSampler(std::shared_ptr<Nvml> nvml, std::string uuid)
    : state_(std::make_unique<State>()) {
  state_->nvml = std::move(nvml);
  state_->uuid = std::move(uuid);
  state_->nvlink_before = state_->nvlink();
  state_->start = std::chrono::steady_clock::now();
  if (state_->reads()) state_->thread = std::thread([state = state_.get()] { state->run(); });
}

GpuSampler::~GpuSampler() { state_->join(); }

GpuWindow GpuSampler::finish() {
  GpuWindow window;
  const double length_s = state_->seconds();
  const NvlinkBytes nvlink = state_->nvlink();
  window.nvlink = {nvlink.sent - state_->nvlink_before.sent,
                   nvlink.received - state_->nvlink_before.received};
  state_->join();
  const std::vector<GpuSample>& samples = state_->samples;
  window.samples = static_cast<int>(samples.size());
  if (samples.empty()) return window;
  state_->energy.push_back({state_->seconds(), state_->nvml->sample(state_->uuid).energy_j});

  const std::vector<double> clocks = known(samples, &GpuSample::sm_clock_mhz);
  const std::vector<double> powers = known(samples, &GpuSample::power_w);
  if (!clocks.empty()) window.sm_clock_mhz = median_of(clocks);
  if (!powers.empty()) window.power_w = summarize(powers).mean;
  for (const GpuSample& s : samples) {
    window.temperature_c = std::fmax(window.temperature_c, s.temperature_c);
    window.memory_used_bytes = std::fmax(window.memory_used_bytes, s.memory_used_bytes);
    window.reasons.push_back(s.throttle_reasons);
  }
  window.throttle_reasons = any_reason(samples);
  constexpr double kShortest_s = 0.3;  // in less the counter is updated too rarely
  const double mean_w = mean_power_w(state_->energy);
  if (length_s >= kShortest_s && std::isfinite(mean_w)) {
    window.energy_j = mean_w * length_s;
    window.power_w = mean_w;
  }
  return window;
}

}  // namespace shakedown
