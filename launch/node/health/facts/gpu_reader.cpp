#include "launch/node/health/facts/gpu_reader.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "launch/node/health/facts/gpu_sequence.hpp"

namespace shakedown::node {
namespace {

using LibraryHandle = std::shared_ptr<const nvml::Library>;

/// A sequence of calls and what it has read so far, which it fills for as long as it runs.
template <class Result>
struct Task {
  template <class Body>
  Task(const CallLimits& limits, Result start, Body body)
      : result(std::make_shared<Result>(std::move(start))),
        calls(limits,
              [result = result, body](WatchedCalls::Caller& call) { body(call, *result); }) {}
  std::shared_ptr<Result> result;
  WatchedCalls calls;
};

struct Started {
  Known<std::string> problem;
  unsigned gpus = 0;
};

/// Loads the driver and counts its GPUs.
void start(const nvml::Library& library, WatchedCalls::Caller& call, Started& started) {
  const auto succeeds = [&](const auto& function, auto... arguments) {
    const int status = call(function, arguments...);
    if (status == nvml::kFunctionNotFound)
      started.problem = fmt::format("the NVML library has no {}", function.name);
    else if (status != nvml::kSuccess)
      started.problem = fmt::format("{}: {}", function.name, library.words_of(status));
    return status == nvml::kSuccess;
  };
  if (succeeds(library.init)) succeeds(library.count, &started.gpus);
}

void read_versions(const nvml::Library& library, WatchedCalls::Caller& call, HostGpus& host) {
  std::array<char, 96> driver{};
  int status = call(library.driver_version, driver.data(), static_cast<unsigned>(driver.size()));
  note_failure(library, library.driver_version.name, status, host.failed);
  if (status == nvml::kSuccess) host.driver_version = driver.data();
  int cuda = 0;
  status = call(library.cuda_version, &cuda);
  if (status != nvml::kSuccess) status = call(library.old_cuda_version, &cuda);
  note_failure(library, library.old_cuda_version.name, status, host.failed);
  if (status == nvml::kSuccess)
    host.cuda_driver_version = fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10);
}

int never_returns(nvml::Device, unsigned*) {
  for (;;) pause();
}

nvml::FindFunction stalling(nvml::FindFunction find) {
  return [find = std::move(find)](const char* name) {
    return name == std::string_view("nvmlDeviceGetPowerUsage")
               ? reinterpret_cast<void*>(never_returns)
               : find(name);
  };
}

/// A GPU's reading where an earlier call has not returned yet.
GpuReading still_stalled(const GpuReading& earlier) {
  GpuReading reading;
  reading.index = earlier.index;
  reading.uuid = earlier.uuid;
  reading.model = earlier.model;
  reading.serial = earlier.serial;
  reading.pci_id = earlier.pci_id;
  reading.pci_device_id = earlier.pci_device_id;
  reading.stalled = earlier.stalled;
  return reading;
}

}  // namespace

struct GpuReader::State {
  struct Gpu {
    std::unique_ptr<Task<GpuReading>> task;  // of the last reading that was started
    GpuReading last;
  };

  State(double deadline, double whole) : deadline_s(deadline), whole_s(whole) {}

  /// Those of a call by when this share of the whole time is over.
  CallLimits limits(double share) const {
    if (!std::isfinite(whole_s)) return {deadline_s};
    const auto time = std::chrono::duration<double>(share * whole_s);
    return {deadline_s, made + std::chrono::duration_cast<CallLimits::Clock::duration>(time)};
  }

  /// The driver is not shut down at the end: that call, too, might not return.
  void open(const nvml::FindFunction& find) {
    library = std::make_shared<nvml::Library>(find);
    constexpr double kOpening = 0.8;
    const auto before = CallLimits::Clock::now();
    Task<Started> starting(limits(kOpening), {}, [library = library](auto& call, Started& started) {
      start(*library, call, started);
    });
    if (const auto stalled = starting.calls.wait()) {
      const std::chrono::duration<double> waited = CallLimits::Clock::now() - before;
      host.problem = fmt::format("{} did not return within {:.2g} s", *stalled, waited.count());
      host.stalled.push_back(*stalled);
      return;
    }
    host.problem = starting.result->problem;
    if (host.problem) return;
    gpus.resize(starting.result->gpus);
    if (gpus.empty()) host.problem = "the driver has no GPU";
    Task<HostGpus> versions(limits(kOpening), host, [library = library](auto& call, HostGpus& to) {
      read_versions(*library, call, to);
    });
    const auto stalled = versions.calls.wait();
    host = *versions.result;
    if (stalled) host.stalled.push_back(*stalled);
  }

  void start_reading(int index, bool inforom) {
    GpuReading reading;
    reading.index = index;
    const auto body = [library = library, inforom](auto& call, GpuReading& to) {
      GpuSequence(*library, call, to, inforom).run();
    };
    gpus[static_cast<std::size_t>(index)].task =
        std::make_unique<Task<GpuReading>>(limits(1), std::move(reading), body);
  }

  const double deadline_s, whole_s;
  const CallLimits::Clock::time_point made = CallLimits::Clock::now();
  LibraryHandle library;
  HostGpus host;  // what does not change
  std::vector<Gpu> gpus;
};

GpuReader::GpuReader(double deadline_s, const nvml::FindFunction& find)
    : state_(std::make_unique<State>(deadline_s, INFINITY)) {
  state_->open(find);
}

GpuReader::GpuReader(double deadline_s, const std::string& library, double whole_s)
    : state_(std::make_unique<State>(deadline_s, whole_s)) {
  std::string problem;
  if (const nvml::FindFunction find = nvml::open_library(library, problem))
    state_->open(find);
  else
    state_->host.problem = problem;
}

GpuReader::~GpuReader() = default;

const HostGpus& GpuReader::host() const { return state_->host; }

HostGpus GpuReader::read(bool inforom) {
  HostGpus host = state_->host;
  std::vector<State::Gpu*> started;
  for (State::Gpu& gpu : state_->gpus) {
    if (gpu.task && gpu.task->calls.stuck()) {
      gpu.last = still_stalled(gpu.last);
    } else {
      state_->start_reading(static_cast<int>(&gpu - state_->gpus.data()), inforom);
      started.push_back(&gpu);
    }
  }
  for (State::Gpu* gpu : started) {
    const auto stalled = gpu->task->calls.wait();
    gpu->last = *gpu->task->result;
    if (stalled) gpu->last.stalled.push_back(*stalled);
  }
  for (const State::Gpu& gpu : state_->gpus) host.gpus.push_back(gpu.last);
  return host;
}

std::unique_ptr<GpuReader> open_reader(double deadline_s, bool stalls, const std::string& library) {
  std::string problem;
  if (stalls)
    if (const auto find = nvml::open_library(library, problem))
      return std::make_unique<GpuReader>(deadline_s, stalling(find));
  return std::make_unique<GpuReader>(deadline_s, library);
}

HostGpus read_gpus(double deadline_s, const std::string& library, double whole_s, bool inforom) {
  return GpuReader(deadline_s, library, whole_s).read(inforom);
}

namespace {

using Clock = CallLimits::Clock;

struct GivenUp {};  // thrown through the sequence

}  // namespace

struct WatchedCalls::Caller::State {
  CallLimits limits;
  mutable std::mutex mutex;
  std::condition_variable at_the_end;
  const char* call = nullptr;  // in progress, or late
  Clock::time_point started;
  bool given_up = false;
  bool ended = false;

  /// When a call that starts then is late.
  Clock::time_point deadline(Clock::time_point start) const {
    const auto longest = std::chrono::duration<double>(limits.call_s);
    return std::min(limits.end, start + std::chrono::duration_cast<Clock::duration>(longest));
  }
  bool is_late() const { return call != nullptr && Clock::now() > deadline(started); }
};

void WatchedCalls::Caller::begin(const char* call) {
  const std::lock_guard lock(state_->mutex);
  state_->call = call;
  state_->started = Clock::now();
}

void WatchedCalls::Caller::end() {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_late()) state_->given_up = true;
  if (state_->given_up) throw GivenUp();
  state_->call = nullptr;
}

WatchedCalls::WatchedCalls(const CallLimits& limits, std::function<void(Caller&)> sequence)
    : state_(std::make_shared<Caller::State>()) {
  state_->limits = limits;
  std::thread([state = state_, sequence = std::move(sequence)]() mutable {
    try {
      Caller caller(state);
      sequence(caller);
    } catch (const GivenUp&) {
    }
    sequence = nullptr;  // before it counts as ended: what it used is free
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->at_the_end.notify_all();
  }).detach();
}

std::optional<std::string> WatchedCalls::wait() {
  std::unique_lock lock(state_->mutex);
  // Calls come and go without a word to this thread: it looks again when the one that it saw, or
  // one that begins now, would be late.
  while (!state_->ended && !state_->is_late())
    state_->at_the_end.wait_until(
        lock, state_->deadline(state_->call == nullptr ? Clock::now() : state_->started) +
                  std::chrono::milliseconds(1));
  if (!state_->ended) state_->given_up = true;
  if (!state_->given_up) return std::nullopt;
  return state_->call;
}

bool WatchedCalls::stuck() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up && !state_->ended;
}

}  // namespace shakedown::node
