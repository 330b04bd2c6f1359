#include "common/gpu_sampler.hpp"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
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

/// Shared with the thread, which alone calls NVML: a driver that does not answer keeps the thread,
/// and nobody else.
struct GpuSampler::State {
  std::shared_ptr<Nvml> nvml;
  std::string uuid;
  double deadline_s = 5;
  std::chrono::steady_clock::time_point start;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::vector<GpuSample> samples;
  std::vector<EnergyReading> energy;
  NvlinkBytes nvlink_before, nvlink_after;
  bool ready = false, stop = false, ended = false;

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void set(bool State::*flag) {
    const std::lock_guard lock(mutex);
    this->*flag = true;
    changed.notify_all();
  }
  /// Whether the flag is set within the deadline.
  bool wait(bool State::*flag) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(deadline_s),
                            [&] { return this->*flag; });
  }

  void run() {
    nvlink_before = nvml->nvlink_bytes(uuid);
    start = std::chrono::steady_clock::now();
    set(&State::ready);
    bool stopped = false;
    while (!stopped) {
      const double time_s = seconds();
      const GpuSample sample = nvml->sample(uuid);
      std::unique_lock lock(mutex);
      samples.push_back(sample);
      energy.push_back({time_s, sample.energy_j});
      stopped = changed.wait_for(lock, std::chrono::milliseconds(100), [this] { return stop; });
    }
    nvlink_after = nvml->nvlink_bytes(uuid);
    const double energy_j = nvml->sample(uuid).energy_j;
    energy.push_back({seconds(), energy_j});
    set(&State::ended);
  }
};

GpuSampler::GpuSampler(std::shared_ptr<Nvml> nvml, std::string uuid, double deadline_s)
    : state_(std::make_shared<State>()) {
  if (!nvml || uuid.empty()) return;
  state_->nvml = std::move(nvml);
  state_->uuid = std::move(uuid);
  state_->deadline_s = deadline_s;
  thread_ = std::thread([state = state_] { state->run(); });
  state_->wait(&State::ready);
}

GpuSampler::~GpuSampler() { stop(); }

bool GpuSampler::stop() {
  if (!thread_.joinable()) return false;
  state_->set(&State::stop);
  const bool ended = state_->wait(&State::ended);
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return ended;
}

GpuWindow GpuSampler::finish() {
  GpuWindow window;
  const double length_s = state_->seconds();
  if (!stop()) return window;
  const std::vector<GpuSample>& samples = state_->samples;
  window.nvlink = {state_->nvlink_after.sent - state_->nvlink_before.sent,
                   state_->nvlink_after.received - state_->nvlink_before.received};
  window.samples = static_cast<int>(samples.size());

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
