#include "common/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <vector>

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

std::shared_ptr<Nvml> Nvml::open(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
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

}  // namespace shakedown
