// The "health" record: one reading of one GPU.
#pragma once

#include <string>

#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// Its fields: those of to_json, of lists of objects a number instead. `time` is UTC; `reading_ms`
/// is what the reading of all GPUs of the host took.
Json health_record(const std::string& host, const std::string& time, double reading_ms,
                   const GpuReading& reading);

}  // namespace shakedown::node
