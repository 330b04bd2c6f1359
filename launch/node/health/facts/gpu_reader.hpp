// Reads the GPUs of this host again and again. A GPU whose call has not returned is not called
// again until it has: no reading waits for it twice.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

class GpuReader {
 public:
  /// Opens NVML. Where that fails every reading says why. `deadline_s`: of each call; `whole_s`: of
  /// all that this reader ever does, four fifths of it for opening NVML, which is slow where
  /// the driver has to initialize its GPUs first.
  GpuReader(double deadline_s, const std::string& library, double whole_s = INFINITY);
  /// A library that is loaded already, of which every function is found by `find`.
  GpuReader(double deadline_s, const nvml::FindFunction& find);
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  /// What does not change: the versions, or why there are no GPUs to read.
  const HostGpus& host() const;
  /// All GPUs at the same time. Takes the longest of their times, which is the deadline above that
  /// of the other GPUs where one's call newly does not return.
  HostGpus read(bool inforom = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where it `stalls` (--inject-fault stall), the call that reads a GPU's power never returns.
std::unique_ptr<GpuReader> open_reader(double deadline_s, bool stalls,
                                       const std::string& library = nvml::library_name());

}  // namespace shakedown::node
