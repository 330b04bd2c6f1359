// GPU health through NVML, opened at run time: in every build, and silent where there is no driver.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/nvml_library.hpp"

namespace shakedown {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// One reading of one GPU; kUnknown where the driver does not report it.
struct GpuSample {
  double sm_clock_mhz = kUnknown;
  double power_w = kUnknown;
  double temperature_c = kUnknown;
  double memory_used_bytes = kUnknown;
  double energy_j = kUnknown;                     // since the driver was loaded
  std::optional<std::uint64_t> throttle_reasons;  // a bit each; none where the driver does not say
};

/// What a GPU's NVLinks have carried since the driver was loaded: payload, in steps of 1 KiB, of
/// all its links and of every process. kUnknown where there are none, or none are reported.
struct NvlinkBytes {
  double sent = kUnknown;
  double received = kUnknown;
};

/// What a GPU says of itself; kUnknown and "" where the driver does not report it.
struct GpuDescription {
  std::string serial;
  std::string
      pci_device_id;  // vendor and device, vendor and device of the subsystem: 10de:2335:10de:18be
  double memory_clock_mhz = kUnknown, memory_bits = kUnknown;
  int pcie_generation = 0, pcie_width = 0;  // the most that GPU and slot have; 0: unknown
  double power_limit_w = kUnknown;

  double memory_gbs() const { return 2 * memory_clock_mhz * 1e6 * memory_bits / 8 / 1e9; }
  double pcie_gbs() const;  // one way, of the wires
};

/// What a GPU has of NVLink, and of its fabric.
struct NvlinkWires {
  std::string bus_id;   // of the GPU: "00000000:19:00.0"
  bool fabric = false;  // it is registered with one
  std::string clique;   // the fabric's cluster and clique; empty within a node's own fabric
  int links = 0;        // that are active
  int to_switch = 0;    // of these
  std::vector<std::string> gpus;  // at the other end of the others, by bus id: one per link
  double link_gbs = kUnknown;     // payload of a link, one way
};

/// What is between two GPUs of a node.
enum class Between { unknown, nvlink, pcie_switch, host_bridge, socket };

class Nvml {
 public:
  using FindFunction = nvml::FindFunction;

  /// Loads `library`; null when it or a driver is missing.
  static std::shared_ptr<Nvml> open(const std::string& library = nvml::library_name());
  /// Opens a library that is loaded already. The reading of a function that it lacks is unknown.
  static std::shared_ptr<Nvml> open(const FindFunction& find);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  /// UUID of a MIG instance's GPU, as far as NVML says; else the same UUID.
  std::string gpu_of(const std::string& uuid) const;
  /// All unknown when NVML knows no GPU of this UUID: health is read next to the work and must not
  /// end it.
  GpuSample sample(const std::string& uuid) const;
  GpuDescription describe(const std::string& uuid) const;
  NvlinkBytes nvlink_bytes(const std::string& uuid) const;
  NvlinkWires nvlink_wires(const std::string& uuid) const;
  Between between(const std::string& uuid, const std::string& other) const;
  /// Memory that this process holds on the GPU; kUnknown where the driver hides it.
  double process_memory_bytes(const std::string& uuid) const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

/// The names of the set bits, as nvidia-smi has them, separated by blanks; idle and application
/// clocks are left out. "unknown" if the driver did not report them.
std::string text_of_throttle_reasons(const std::optional<std::uint64_t>& reasons);
inline constexpr const char* kUnknownText = "unknown";

}  // namespace shakedown

namespace shakedown::throttle {

// Why a GPU's clocks are reduced: bits as nvml.h has them (nvmlClocksEventReason...).

inline constexpr std::uint64_t kApplicationClocks = 0x002;  // set by an operator
inline constexpr std::uint64_t kPowerCap = 0x004;
inline constexpr std::uint64_t kHwSlowdown = 0x008;  // set with kHwThermal and kPowerBrake as well
inline constexpr std::uint64_t kSyncBoost = 0x010;
inline constexpr std::uint64_t kSwThermal = 0x020;
inline constexpr std::uint64_t kHwThermal = 0x040;
inline constexpr std::uint64_t kPowerBrake = 0x080;
inline constexpr std::uint64_t kDisplayClocks = 0x100;

inline constexpr std::uint64_t kHeat = kSwThermal | kHwThermal;
inline constexpr std::uint64_t kHardware = kHwSlowdown | kPowerBrake;

}  // namespace shakedown::throttle

namespace shakedown {

// Samples a GPU while something is timed, through NVML.

struct EnergyReading {
  double time_s = 0;
  double energy_j = kUnknown;
};
/// Mean power from readings, in order, of a counter that is updated only every 20 to 100 ms: the
/// energy between the first and the last reading that differ from the previous one, over their
/// time. Each follows an update by no more than the time between readings. kUnknown with fewer than
/// two such readings.
double mean_power_w(const std::vector<EnergyReading>& readings);

/// A GPU's state during a timed window, from the samples that are known.
struct GpuWindow {
  int samples = 0;
  double sm_clock_mhz = kUnknown;       // median
  double power_w = kUnknown;            // mean; mean_power_w where there is an energy counter
  double temperature_c = kUnknown;      // highest
  double memory_used_bytes = kUnknown;  // highest
  double energy_j = kUnknown;           // of a window of 0.3 s at least
  // Any sample's; none where no sample has one and some are unknown.
  std::optional<std::uint64_t> throttle_reasons;
  std::vector<std::optional<std::uint64_t>> reasons;  // of each sample
  NvlinkBytes nvlink;
};

/// Samples one GPU ten times per second on its own thread, from construction to finish(). A driver
/// that does not answer within `deadline_s` leaves everything in the window unknown.
class GpuSampler {
 public:
  /// Without NVML, or with an empty UUID, everything in the window is unknown.
  GpuSampler(std::shared_ptr<Nvml> nvml, std::string uuid, double deadline_s = 5);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  GpuWindow finish();

 private:
  struct State;
  /// Whether the thread, which read something, has ended.
  bool stop();

  std::chrono::duration<double> deadline_;
  std::shared_ptr<State> state_;
  std::future<void> ended_;
};

}  // namespace shakedown
