// The sequence of NVML's calls that reads one GPU.
#pragma once

#include <string>
#include <vector>

#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// Notes an error of a call under its name; not that a driver or a GPU does not have what was
/// requested.
void note_failure(const nvml::Library& library, const std::string& function, int status,
                  std::vector<std::string>& failed);

/// Fills a reading whose index is given. Up to a call that does not return the reading is complete.
/// `inforom`: also verifies its checksums, which reads the GPU's flash.
void read_gpu(const nvml::Library& library, Caller& call, GpuReading& reading, bool inforom);

}  // namespace shakedown::node
