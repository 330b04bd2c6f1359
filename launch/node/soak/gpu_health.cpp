#include "launch/node/soak/gpu_health.hpp"

#include <utility>

#include "launch/node/health/facts/gpu_counters.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"

namespace shakedown::node {
namespace {

constexpr double kDeadline_s = 5;

double difference(const Known<std::uint64_t>& before, const Known<std::uint64_t>& after) {
  const auto errors = grown(before, after);
  return errors ? static_cast<double>(*errors) : kUnknown;
}

}  // namespace

HealthDelta delta_of(const GpuReading& before, const GpuReading& after) {
  return {difference(before.volatile_.corrected, after.volatile_.corrected),
          difference(before.volatile_.uncorrected, after.volatile_.uncorrected),
          difference(before.pcie_replays, after.pcie_replays),
          difference(nvlink_errors(before), nvlink_errors(after))};
}

GpuHealth::GpuHealth(std::string uuid, bool stall) : uuid_(std::move(uuid)) {
  if (uuid_.empty()) return;
  reader_ = open_reader(kDeadline_s, stall);
  last_ = read();
}

GpuHealth::~GpuHealth() = default;

GpuReading GpuHealth::read() {
  const HostGpus host = reader_->read();
  if (stalled_.empty()) stalled_ = host.stalled;
  for (const GpuReading& gpu : host.gpus)
    if (gpu.uuid == uuid_) {
      if (stalled_.empty()) stalled_ = gpu.stalled;
      return gpu;
    }
  return {};
}

HealthDelta GpuHealth::delta() {
  if (!reader_) return {};
  const GpuReading before = std::exchange(last_, read());
  if (last_.serial.empty()) last_.serial = before.serial;
  return delta_of(before, last_);
}

}  // namespace shakedown::node
