// GPU health through NVML, opened at run time: in every build, and silent where there is no driver.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shakedown {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// One reading of one GPU; kUnknown where the driver does not say.
struct GpuSample {
  double sm_clock_mhz = kUnknown;
  double power_w = kUnknown;
  double temperature_c = kUnknown;
  double memory_used_bytes = kUnknown;
  double energy_j = kUnknown;                     // since the driver was loaded
  std::optional<std::uint64_t> throttle_reasons;  // a bit each; none where the driver does not say
};

/// What a GPU's NVLinks have carried since the driver was loaded: payload, in steps of 1 KiB, of
/// all its links and of every process. kUnknown where there are none, or the driver does not say.
struct NvlinkBytes {
  double sent = kUnknown;
  double received = kUnknown;
};

class Nvml {
 public:
  /// The address of one of the library's functions, or null.
  using FindFunction = std::function<void*(const char* name)>;

  /// Null when libnvidia-ml or a driver is missing.
  static std::shared_ptr<Nvml> open();
  /// The same by a library that is there; a function that it lacks leaves its reading unknown.
  static std::shared_ptr<Nvml> open(const FindFunction& find);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  /// All unknown when NVML knows no GPU of this UUID: health is read beside the work and must not
  /// end it.
  GpuSample sample(const std::string& uuid) const;
  NvlinkBytes nvlink_bytes(const std::string& uuid) const;
  /// Memory that this process holds on the GPU; kUnknown where the driver hides it.
  double process_memory_bytes(const std::string& uuid) const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

/// The names of the set bits, as nvidia-smi has them, separated by blanks; idle and application
/// clocks are left out. "unknown" where the driver did not say.
std::string text_of_throttle_reasons(const std::optional<std::uint64_t>& reasons);
inline constexpr const char* kUnknownText = "unknown";

struct EnergyReading {
  double time_s = 0;
  double energy_j = kUnknown;
};
/// Of readings, in order, of a counter that is updated only every 20 to 100 ms: the energy between
/// the first and the last reading that differ from the one before, over their time. Each came
/// behind an update by no more than readings are apart. kUnknown with fewer than two such readings.
double mean_power_w(const std::vector<EnergyReading>& readings);

/// What happened on a GPU while something was timed: of the samples that are known.
struct GpuWindow {
  int samples = 0;
  double sm_clock_mhz = kUnknown;       // median
  double power_w = kUnknown;            // mean: mean_power_w where the energy counter tells it
  double temperature_c = kUnknown;      // highest
  double memory_used_bytes = kUnknown;  // highest
  double energy_j = kUnknown;           // of a window of 0.3 s at least
  // Any sample's; none where no sample has one and some are unknown.
  std::optional<std::uint64_t> throttle_reasons;
  NvlinkBytes nvlink;
};

/// Samples one GPU ten times a second on a thread of its own, between construction and finish().
class GpuSampler {
 public:
  /// With no NVML or an empty UUID the window is all unknown.
  GpuSampler(std::shared_ptr<Nvml> nvml, std::string uuid);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  GpuWindow finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shakedown
