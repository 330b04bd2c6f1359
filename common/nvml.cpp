#include "common/nvml.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <future>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "common/nvml_library.hpp"
#include "common/statistics.hpp"
#include "common/watch.hpp"

namespace shakedown {
namespace {

struct ReasonName {
  std::uint64_t bit;
  const char* name;
};
constexpr std::array<ReasonName, 7> kReasons{{{throttle::kPowerCap, "sw_power_cap"},
                                              {throttle::kHwSlowdown, "hw_slowdown"},
                                              {throttle::kSyncBoost, "sync_boost"},
                                              {throttle::kSwThermal, "sw_thermal_slowdown"},
                                              {throttle::kHwThermal, "hw_thermal_slowdown"},
                                              {throttle::kPowerBrake, "hw_power_brake"},
                                              {throttle::kDisplayClocks, "display_clocks"}}};

/// Payload of a link of a speed on the wire: 25 GB/s of 25.78 (64 of 66 bits) and of 26.56 (16 of
/// 17), 50 of 53.13.
double nvlink_payload_gbs(double wire_mbs) {
  return wire_mbs < 25e3 ? 0.97 * wire_mbs / 1e3 : 25 * std::floor(wire_mbs / 25e3);
}

template <class Function, class... Arguments>
bool succeeds(const Function& function, Arguments... arguments) {
  return nvml::call(function, arguments...) == nvml::kSuccess;
}

}  // namespace

struct Nvml::Library : nvml::Library {
  using nvml::Library::Library;

  /// Null when NVML knows no GPU of this UUID, or has lost it.
  nvml::Device device(const std::string& uuid) const {
    nvml::Device found = nullptr;
    return succeeds(handle_by_uuid, uuid.c_str(), &found) ? found : nullptr;
  }

  /// That of a MIG instance's GPU, else the device.
  nvml::Device gpu_of(nvml::Device device) const {
    nvml::Device gpu = nullptr;
    return succeeds(gpu_of_mig, device, &gpu) ? gpu : device;
  }

  double temperature_c(nvml::Device device) const {
    nvml::Temperature current{nvml::version_of<nvml::Temperature>(1), nvml::kTemperatureGpu, 0};
    if (succeeds(temperature, device, &current)) return current.celsius;
    unsigned value = 0;
    return succeeds(old_temperature, device, nvml::kTemperatureGpu, &value) ? value : kUnknown;
  }

  /// Of a GPU that has completed its registration with a fabric.
  std::optional<nvml::FabricInfo> fabric_of(nvml::Device device) const {
    nvml::FabricInfo info{};
    const auto reads = [&](const auto& function, auto* to) {
      return succeeds(function, device, to);
    };
    if (!nvml::read_fabric(*this, reads, info)) return std::nullopt;
    if (info.state != nvml::kFabricCompleted || info.status != nvml::kSuccess) return std::nullopt;
    return info;
  }

  std::optional<std::uint64_t> throttle_reasons(nvml::Device device) const {
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
  std::string problem;
  const FindFunction find = nvml::open_library(library, problem);
  return find ? open(find) : nullptr;
}

std::string Nvml::driver_version() const {
  std::array<char, 96> text{};
  const auto length = static_cast<unsigned>(text.size());
  return succeeds(library_->driver_version, text.data(), length) ? text.data() : "";
}

std::string Nvml::gpu_of(const std::string& uuid) const {
  const nvml::Device device = library_->device(uuid);
  if (device == nullptr) return uuid;
  std::array<char, 96> text{};
  const auto length = static_cast<unsigned>(text.size());
  return succeeds(library_->uuid, library_->gpu_of(device), text.data(), length) ? text.data()
                                                                                 : uuid;
}

GpuSample Nvml::sample(const std::string& uuid) const {
  const nvml::Device device = library_->device(uuid);
  GpuSample s;
  if (device == nullptr) return s;
  // Clock and heat of a MIG instance are its GPU's; power and energy are of all its instances.
  const nvml::Device gpu = library_->gpu_of(device);
  unsigned value = 0;
  if (succeeds(library_->clock, gpu, nvml::kClockSm, &value)) s.sm_clock_mhz = value;
  if (succeeds(library_->power_mw, device, &value)) s.power_w = value / 1e3;
  s.temperature_c = library_->temperature_c(gpu);
  nvml::Memory memory{};
  if (succeeds(library_->memory, device, &memory))
    s.memory_used_bytes = static_cast<double>(memory.used);
  unsigned long long counter = 0;
  if (succeeds(library_->energy_mj, device, &counter))
    s.energy_j = static_cast<double>(counter) / 1e3;
  s.throttle_reasons = library_->throttle_reasons(gpu);
  return s;
}

double GpuDescription::pcie_gbs() const {
  // of a lane, after its coding: 8b/10b up to generation 2, 128b/130b up to 5, FLITs from 6 on
  constexpr std::array<double, 7> kLane_gbs{kUnknown, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
  if (pcie_generation < 1 || pcie_generation >= static_cast<int>(kLane_gbs.size()) ||
      pcie_width == 0)
    return kUnknown;
  return kLane_gbs[static_cast<std::size_t>(pcie_generation)] * pcie_width;
}

GpuDescription Nvml::describe(const std::string& uuid) const {
  const nvml::Device device = library_->device(uuid);
  GpuDescription found;
  if (device == nullptr) return found;
  std::array<char, 96> text{};
  if (succeeds(library_->serial, device, text.data(), static_cast<unsigned>(text.size())))
    found.serial = text.data();
  nvml::PciInfo pci{};
  if (succeeds(library_->pci, device, &pci)) found.pci_device_id = nvml::device_id_of(pci);
  unsigned value = 0;
  if (succeeds(library_->max_clock, device, nvml::kClockMemory, &value))
    found.memory_clock_mhz = value;
  if (succeeds(library_->memory_bus_width, device, &value)) found.memory_bits = value;
  if (succeeds(library_->max_pcie_generation, device, &value))
    found.pcie_generation = static_cast<int>(value);
  if (succeeds(library_->max_pcie_width, device, &value))
    found.pcie_width = static_cast<int>(value);
  if (succeeds(library_->power_limit_mw, device, &value) ||
      succeeds(library_->old_power_limit_mw, device, &value))
    found.power_limit_w = value / 1e3;
  return found;
}

NvlinkBytes Nvml::nvlink_bytes(const std::string& uuid) const {
  std::array<nvml::FieldValue, 2> fields{
      nvml::field_value(nvml::kFieldNvlinkSentKib, nvml::kAllLinks),
      nvml::field_value(nvml::kFieldNvlinkReceivedKib, nvml::kAllLinks)};
  const nvml::Device device = library_->device(uuid);
  if (device == nullptr ||
      !succeeds(library_->field_values, device, static_cast<int>(fields.size()), fields.data()))
    return {};
  const auto bytes = [](const nvml::FieldValue& field) {
    const auto kib = nvml::count_of(field);
    return kib ? 1024 * static_cast<double>(*kib) : kUnknown;
  };
  return {bytes(fields[0]), bytes(fields[1])};
}

NvlinkWires Nvml::nvlink_wires(const std::string& uuid) const {
  NvlinkWires wires;
  const nvml::Device device = library_->device(uuid);
  if (device == nullptr) return wires;
  nvml::PciInfo pci{};
  if (succeeds(library_->pci, device, &pci)) wires.bus_id = pci.bus_id;
  if (const auto fabric = library_->fabric_of(device)) {
    wires.fabric = true;
    if (const std::string cluster = nvml::cluster_of(*fabric); !cluster.empty())
      wires.clique = fmt::format("{}.{}", cluster, fabric->clique);
  }
  for (unsigned link = 0; link < nvml::kMostLinks; ++link) {
    unsigned active = 0;
    if (!succeeds(library_->nvlink_state, device, link, &active) || active == 0) continue;
    ++wires.links;
    unsigned type = nvml::kNotRead;
    if (!succeeds(library_->nvlink_remote_type, device, link, &type)) continue;
    if (type == nvml::kRemoteSwitch) ++wires.to_switch;
    nvml::PciInfo remote{};
    if (type == nvml::kRemoteGpu && succeeds(library_->nvlink_remote, device, link, &remote))
      wires.gpus.emplace_back(remote.bus_id);
  }
  nvml::FieldValue speeds[]{nvml::field_value(nvml::kFieldNvlinkSpeed),
                            nvml::field_value(nvml::kFieldNvlinkCommonSpeed)};
  if (wires.links > 0 && succeeds(library_->field_values, device, 2, speeds))
    for (const nvml::FieldValue& speed : speeds)
      if (const auto mbs = nvml::count_of(speed); mbs && *mbs > 0 && !std::isfinite(wires.link_gbs))
        wires.link_gbs = nvlink_payload_gbs(static_cast<double>(*mbs));
  return wires;
}

Between Nvml::between(const std::string& uuid, const std::string& other) const {
  const nvml::Device a = library_->device(uuid);
  const nvml::Device b = library_->device(other);
  if (a == nullptr || b == nullptr) return Between::unknown;
  unsigned value = nvml::kNotRead;
  if (succeeds(library_->p2p_status, a, b, nvml::kP2pNvlink, &value) && value == nvml::kP2pOk)
    return Between::nvlink;
  if (!succeeds(library_->common_ancestor, a, b, &value)) return Between::unknown;
  if (value <= nvml::kTopologySwitches) return Between::pcie_switch;
  return value <= nvml::kTopologyNode ? Between::host_bridge : Between::socket;
}

double Nvml::process_memory_bytes(const std::string& uuid) const {
  std::array<nvml::Process, 64> processes{};
  unsigned count = processes.size();
  const nvml::Device device = library_->device(uuid);
  if (device == nullptr || !succeeds(library_->processes, device, &count, processes.data()))
    return kUnknown;
  for (unsigned i = 0; i < count; ++i)
    if (processes[i].pid == static_cast<unsigned>(getpid()) &&
        processes[i].used_memory != nvml::kMemoryHidden)
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
  std::chrono::steady_clock::time_point start;
  std::promise<void> ready;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::vector<GpuSample> samples;
  std::vector<EnergyReading> energy;
  NvlinkBytes nvlink_before, nvlink_after;
  bool stop = false;

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run() {
    nvlink_before = nvml->nvlink_bytes(uuid);
    start = std::chrono::steady_clock::now();
    ready.set_value();
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
  }
};

GpuSampler::GpuSampler(std::shared_ptr<Nvml> nvml, std::string uuid, double deadline_s)
    : deadline_(deadline_s), state_(std::make_shared<State>()) {
  if (!nvml || uuid.empty()) return;
  state_->nvml = std::move(nvml);
  state_->uuid = std::move(uuid);
  const std::future<void> ready = state_->ready.get_future();
  ended_ = start_detached<void>([state = state_] { state->run(); });
  ready.wait_for(deadline_);
}

GpuSampler::~GpuSampler() { stop(); }

bool GpuSampler::stop() {
  if (!ended_.valid()) return false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  return std::exchange(ended_, {}).wait_for(deadline_) == std::future_status::ready;
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
