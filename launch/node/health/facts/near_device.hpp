// Memory near a device: allocated by a thread that runs on the cores of its NUMA node.
#pragma once

#include <sched.h>

#include <string>

namespace shakedown::node {

inline constexpr const char* kNotNear = "not near";  // how text() begins then
inline constexpr const char* kNumaUnknown = "NUMA node unknown";

/// While it lives, this thread runs on those of its cores that are of the device's NUMA node.
class NearDevice {
 public:
  /// `pci_id` as CUDA has it, "0000:1B:00.0"; empty: no device, nothing changes. `root`: where the
  /// machine's file system is mounted.
  explicit NearDevice(const std::string& pci_id, const std::string& root = "");
  ~NearDevice();
  NearDevice(const NearDevice&) = delete;
  NearDevice& operator=(const NearDevice&) = delete;

  /// "NUMA node 1", "not near NUMA node 1: no core of it is allowed" or "NUMA node unknown".
  const std::string& text() const { return text_; }

 private:
  std::string text_ = kNumaUnknown;
  bool moved_ = false;
  cpu_set_t before_;
};

}  // namespace shakedown::node
