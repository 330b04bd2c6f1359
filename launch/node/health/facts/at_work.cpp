#include "launch/node/health/facts/at_work.hpp"

#include <utility>

#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/host_facts.hpp"

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

KernelWatch::KernelWatch(std::string pci_id, std::string root)
    : pci_id_(std::move(pci_id)), root_(std::move(root)), start_s_(uptime_s({root_, {}})) {
  if (const auto log = read_kernel_log(kmsg(), start_s_)) last_ = log->last_sequence;
}

std::optional<std::vector<KernelEvent>> KernelWatch::events() {
  const double now_s = uptime_s({root_, {}});
  auto log = read_kernel_log(kmsg(), now_s);
  if (!log) return std::nullopt;
  // By their numbers: the clock of messages drifts from the uptime's, by a minute in some months.
  const auto is_known = [&](const KernelEvent& event) {
    return last_ ? event.sequence <= *last_ : event.age_s > now_s - start_s_;
  };
  const auto is_ours = [&](const KernelEvent& event) {
    if (event.kind == KernelEventKind::sxid) return true;
    if (!event.pci_id.empty()) return same_pci_device(event.pci_id, pci_id_);
    return event.kind != KernelEventKind::not_understood ||
           event.text.find("Xid") != event.text.npos;
  };
  std::erase_if(log->events,
                [&](const KernelEvent& event) { return is_known(event) || !is_ours(event); });
  const bool has_gap = last_ ? log->first_sequence > *last_ + 1
                             : !log->is_whole() && log->reaches_back_s < now_s - start_s_;
  last_ = log->last_sequence;
  if (has_gap && log->events.empty()) return std::nullopt;
  return std::move(log->events);
}

}  // namespace shakedown::node
