// Reads the GPUs of this host again and again. A GPU whose call has not returned is not called
// again until it has: no reading waits for it twice.
#pragma once

#include <memory>
#include <string>

#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

class GpuReader {
 public:
  /// Opens NVML. Where that fails every reading says why.
  GpuReader(double deadline_s, const std::string& library);
  /// A library that is loaded already, of which every function is found by `find`.
  GpuReader(double deadline_s, const nvml::FindFunction& find);
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  /// What does not change: the versions, or why there are no GPUs to read.
  const HostGpus& host() const;
  /// All GPUs at the same time. Takes the longest of their times, which is the deadline above that
  /// of the other GPUs where one's call newly does not return.
  HostGpus read();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `find`, but the power of no GPU can be read: that call does not return. For --inject-fault
/// stall.
nvml::FindFunction stalling(nvml::FindFunction find);

}  // namespace shakedown::node
