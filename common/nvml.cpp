#include "common/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/statistics.hpp"

namespace shakedown {
namespace {

// The few declarations of nvml.h that are used, so that no build needs that header.
using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr int kNotRead = 999;  // NVML_ERROR_UNKNOWN
constexpr unsigned kTemperatureGpu = 0;
struct NvmlTemperature {
  unsigned version;
  unsigned sensor;
  int celsius;
};
constexpr unsigned kTemperatureVersion = sizeof(NvmlTemperature) | 1U << 24;
constexpr unsigned kClockSm = 1;
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance;
  unsigned compute_instance;
};

/// nvmlFieldValue_t, which has not changed since CUDA 11.
struct NvmlFieldValue {
  unsigned field;
  unsigned scope;
  long long timestamp_us;
  long long latency_us;
  unsigned type;
  int status;
  union {
    unsigned narrow;
    unsigned long long wide;
  } value;
};
static_assert(sizeof(NvmlFieldValue) == 40);
constexpr unsigned kNvlinkSentKib = 138;      // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
constexpr unsigned kNvlinkReceivedKib = 139;  // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
constexpr unsigned kAllLinks = ~0U;

double count_of(const NvmlFieldValue& field) {
  if (field.status != kSuccess) return kUnknown;
  switch (field.type) {
    case 1: return field.value.narrow;                     // unsigned int
    case 2:                                                // unsigned long
    case 3: return static_cast<double>(field.value.wide);  // unsigned long long
    default: return kUnknown;                              // no counter has another type
  }
}

struct ReasonName {
  std::uint64_t bit;
  const char* name;
};
constexpr std::array<ReasonName, 7> kReasons{{{0x004, "sw_power_cap"},
                                              {0x008, "hw_slowdown"},
                                              {0x010, "sync_boost"},
                                              {0x020, "sw_thermal_slowdown"},
                                              {0x040, "hw_thermal_slowdown"},
                                              {0x080, "hw_power_brake"},
                                              {0x100, "display_clocks"}}};

/// Calls a function that the library may lack.
template <class... Parameters, class... Arguments>
bool succeeds(int (*function)(Parameters...), Arguments... arguments) {
  return function != nullptr && function(arguments...) == kSuccess;
}

}  // namespace

struct Nvml::Library {
  // Null where the library lacks it.
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*handle_by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power_mw)(NvmlDevice, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, NvmlTemperature*) = nullptr;
  int (*old_temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;  // deprecated in CUDA 13
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*energy_mj)(NvmlDevice, unsigned long long*) = nullptr;
  int (*reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*old_reasons)(NvmlDevice, unsigned long long*) = nullptr;  // deprecated in CUDA 13
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
  int (*field_values)(NvmlDevice, int, NvmlFieldValue*) = nullptr;

  const FindFunction keeps_loaded;

  explicit Library(const FindFunction& find) : keeps_loaded(find) {
    const auto load = [&]<class Function>(Function*& function, const char* name) {
      function = reinterpret_cast<Function*>(find(name));
    };
    load(init, "nvmlInit_v2");
    load(shutdown, "nvmlShutdown");
    load(driver_version, "nvmlSystemGetDriverVersion");
    load(handle_by_uuid, "nvmlDeviceGetHandleByUUID");
    load(clock, "nvmlDeviceGetClockInfo");
    load(power_mw, "nvmlDeviceGetPowerUsage");
    load(temperature, "nvmlDeviceGetTemperatureV");
    load(old_temperature, "nvmlDeviceGetTemperature");
    load(memory, "nvmlDeviceGetMemoryInfo");
    load(energy_mj, "nvmlDeviceGetTotalEnergyConsumption");
    load(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    load(old_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    load(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    load(field_values, "nvmlDeviceGetFieldValues");
  }

  /// Null when NVML knows no GPU of this UUID, or has lost it.
  NvmlDevice device(const std::string& uuid) const {
    NvmlDevice found = nullptr;
    return succeeds(handle_by_uuid, uuid.c_str(), &found) ? found : nullptr;
  }

  double temperature_c(NvmlDevice device) const {
    NvmlTemperature current{kTemperatureVersion, kTemperatureGpu, 0};
    if (succeeds(temperature, device, &current)) return current.celsius;
    unsigned value = 0;
    return succeeds(old_temperature, device, kTemperatureGpu, &value) ? value : kUnknown;
  }

  std::optional<std::uint64_t> throttle_reasons(NvmlDevice device) const {
    unsigned long long bits = 0;
    if (succeeds(reasons, device, &bits) || succeeds(old_reasons, device, &bits)) return bits;
    return std::nullopt;
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() { succeeds(library_->shutdown); }

std::shared_ptr<Nvml> Nvml::open(const FindFunction& find) {
  auto library = std::make_unique<Library>(find);
  if (!succeeds(library->init)) return nullptr;
  return std::shared_ptr<Nvml>(new Nvml(std::move(library)));
}

std::shared_ptr<Nvml> Nvml::open() {
  void* const opened = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return nullptr;
  const std::shared_ptr<void> file(opened, dlclose);
  return open([file](const char* name) { return dlsym(file.get(), name); });
}

std::string Nvml::driver_version() const {
  std::array<char, 96> text{};
  return succeeds(library_->driver_version, text.data(), text.size()) ? text.data() : "";
}

GpuSample Nvml::sample(const std::string& uuid) const {
  const NvmlDevice device = library_->device(uuid);
  GpuSample s;
  if (device == nullptr) return s;
  unsigned value = 0;
  if (succeeds(library_->clock, device, kClockSm, &value)) s.sm_clock_mhz = value;
  if (succeeds(library_->power_mw, device, &value)) s.power_w = value / 1e3;
  s.temperature_c = library_->temperature_c(device);
  NvmlMemory memory{};
  if (succeeds(library_->memory, device, &memory))
    s.memory_used_bytes = static_cast<double>(memory.used);
  unsigned long long counter = 0;
  if (succeeds(library_->energy_mj, device, &counter))
    s.energy_j = static_cast<double>(counter) / 1e3;
  s.throttle_reasons = library_->throttle_reasons(device);
  return s;
}

NvlinkBytes Nvml::nvlink_bytes(const std::string& uuid) const {
  std::array<NvmlFieldValue, 2> fields{};
  fields[0].field = kNvlinkSentKib;
  fields[1].field = kNvlinkReceivedKib;
  for (NvmlFieldValue& field : fields) {
    field.scope = kAllLinks;
    field.status = kNotRead;
  }
  const NvmlDevice device = library_->device(uuid);
  if (device == nullptr ||
      !succeeds(library_->field_values, device, static_cast<int>(fields.size()), fields.data()))
    return {};
  return {1024 * count_of(fields[0]), 1024 * count_of(fields[1])};
}

double Nvml::process_memory_bytes(const std::string& uuid) const {
  std::array<NvmlProcess, 64> processes{};
  unsigned count = processes.size();
  const NvmlDevice device = library_->device(uuid);
  if (device == nullptr || !succeeds(library_->processes, device, &count, processes.data()))
    return kUnknown;
  for (unsigned i = 0; i < count; ++i)
    if (processes[i].pid == static_cast<unsigned>(getpid()) && processes[i].used_memory != ~0ULL)
      return static_cast<double>(processes[i].used_memory);
  return kUnknown;  // in a container the driver may know the process by another number
}

std::string text_of_throttle_reasons(const std::optional<std::uint64_t>& reasons) {
  if (!reasons) return kUnknownText;
  std::vector<std::string> names;
  for (const ReasonName& reason : kReasons)
    if (*reasons & reason.bit) names.emplace_back(reason.name);
  return fmt::format("{}", fmt::join(names, " "));
}

double mean_power_w(const std::vector<EnergyReading>& readings) {
  const EnergyReading* first = nullptr;
  const EnergyReading* last = nullptr;
  for (std::size_t i = 1; i < readings.size(); ++i) {
    if (!(readings[i].energy_j > readings[i - 1].energy_j)) continue;  // it stands, or is unknown
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
  }
  window.throttle_reasons = any_reason(samples);
  constexpr double kShortest_s = 0.3;  // fewer updates of the counter tell too little
  const double mean_w = mean_power_w(state_->energy);
  if (length_s >= kShortest_s && std::isfinite(mean_w)) {
    window.energy_j = mean_w * length_s;
    window.power_w = mean_w;
  }
  return window;
}

}  // namespace shakedown
