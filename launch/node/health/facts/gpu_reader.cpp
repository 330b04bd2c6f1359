#include "launch/node/health/facts/gpu_reader.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <future>
#include <string_view>
#include <utility>
#include <vector>

namespace shakedown::node {
/// A sequence of calls, in a thread of its own, and what it has read so far, which it fills for as
/// long as it runs. At a call that is late the thread is left to itself.
template <class Result>
class Task {
 public:
  template <class Body>
  Task(const Caller::Limits& limits, Result start, Body body)
      : read_(std::make_shared<Result>(std::move(start))) {
    auto promise = std::make_shared<std::promise<const char*>>();
    late_ = promise->get_future();
    ended_ = start_detached<void>([limits, body, read = read_, promise = std::move(promise)] {
      try {
        Caller call(limits, [&](const char* name) { promise->set_value(name); });
        body(call, *read);
      } catch (const Caller::GivenUp&) {
        return;
      }
      promise->set_value(nullptr);
    });
  }

  /// Waits until the sequence has ended or a call is late, which is added to `stalled`.
  Result wait(std::vector<std::string>& stalled) {
    const char* const call = late_.get();
    is_late_ = call != nullptr;
    if (is_late_) stalled.emplace_back(call);
    return *read_;
  }
  /// Whether the late call has still not returned.
  bool is_stuck() const {
    return is_late_ && ended_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }

 private:
  std::shared_ptr<Result> read_;
  std::future<const char*> late_;  // null: none
  std::future<void> ended_;
  bool is_late_ = false;
};

namespace {

using LibraryHandle = std::shared_ptr<const nvml::Library>;

struct Opened {
  HostGpus host;         // what does not change
  Known<unsigned> gpus;  // none: the driver could not be asked
};

/// Loads the driver, counts its GPUs and reads the versions.
void open_driver(const nvml::Library& library, Caller& call, Opened& to) {
  HostGpus& host = to.host;
  const auto succeeds = [&](const auto& function, auto... arguments) {
    const int status = call(function, arguments...);
    if (status == nvml::kFunctionNotFound)
      host.problem = fmt::format("the NVML library has no {}", function.name);
    else if (status != nvml::kSuccess)
      host.problem = fmt::format("{}: {}", function.name, library.words_of(status));
    return status == nvml::kSuccess;
  };
  unsigned gpus = 0;
  if (!succeeds(library.init) || !succeeds(library.count, &gpus)) return;
  to.gpus = gpus;
  if (gpus == 0) host.problem = "the driver has no GPU";
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
  Caller::Limits limits(double share) const {
    if (!std::isfinite(whole_s)) return {deadline_s};
    const auto time = std::chrono::duration<double>(share * whole_s);
    return {deadline_s, made + std::chrono::duration_cast<Caller::Clock::duration>(time)};
  }

  /// The driver is not shut down at the end: that call, too, might not return.
  void open(const nvml::FindFunction& find) {
    library = std::make_shared<nvml::Library>(find);
    constexpr double kOpening = 0.8;
    const auto before = Caller::Clock::now();
    std::vector<std::string> stalled;
    const Opened opened =
        Task<Opened>(limits(kOpening), {}, [library = library](Caller& call, Opened& to) {
          open_driver(*library, call, to);
        }).wait(stalled);
    host = opened.host;
    host.stalled = stalled;
    gpus.resize(opened.gpus.value_or(0));
    const std::chrono::duration<double> waited = Caller::Clock::now() - before;
    if (!stalled.empty() && !opened.gpus)
      host.problem =
          fmt::format("{} did not return within {:.2g} s", stalled.back(), waited.count());
  }

  void start_reading(int index, bool inforom) {
    GpuReading reading;
    reading.index = index;
    const auto body = [library = library, inforom](Caller& call, GpuReading& to) {
      read_gpu(*library, call, to, inforom);
    };
    gpus[static_cast<std::size_t>(index)].task =
        std::make_unique<Task<GpuReading>>(limits(1), std::move(reading), body);
  }

  const double deadline_s, whole_s;
  const Caller::Clock::time_point made = Caller::Clock::now();
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
    if (gpu.task && gpu.task->is_stuck()) {
      gpu.last = still_stalled(gpu.last);
    } else {
      state_->start_reading(static_cast<int>(&gpu - state_->gpus.data()), inforom);
      started.push_back(&gpu);
    }
  }
  for (State::Gpu* gpu : started) {
    std::vector<std::string> stalled;
    gpu->last = gpu->task->wait(stalled);
    gpu->last.stalled = std::move(stalled);
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

}  // namespace shakedown::node
