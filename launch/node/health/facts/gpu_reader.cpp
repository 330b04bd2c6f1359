#include "launch/node/health/facts/gpu_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/nvml.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
/// A sequence of calls, in a thread of its own, and what it has read so far, which it fills for as
/// long as it runs. At a call that is late the thread is left to itself.
template <class Result>
class GpuReader::Task {
 public:
  template <class Body>
  Task(const Caller::Limits& limits, Result start, Body body)
      : read_(std::make_shared<Result>(std::move(start))) {
    auto promise = std::make_shared<std::promise<const char*>>();
    late_ = promise->get_future();
    ended_ = start_detached<void>([limits, body, read = read_, promise = std::move(promise)] {
      try {
        Caller call(limits, [&](const char* name) { promise->set_value(name); });
        body(call, *read);
      } catch (const Caller::GivenUp&) {
        return;
      } catch (...) {  // else wait() would not return
        return promise->set_exception(std::current_exception());
      }
      promise->set_value(nullptr);
    });
  }

  /// Waits until the sequence has ended or a call is late, which the result then has as stalled.
  Result wait() {
    const char* const call = late_.get();
    is_late_ = call != nullptr;
    Result result = *read_;
    if (is_late_) result.stalled = {call};
    return result;
  }
  /// Whether the late call has still not returned.
  bool is_stuck() const {
    return is_late_ && ended_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }

 private:
  std::shared_ptr<Result> read_;
  std::future<const char*> late_;  // null: none
  std::future<void> ended_;
  bool is_late_ = false;
};

namespace {

/// Loads the driver, counts its GPUs, of which only the index is known then, and reads the
/// versions.
void open_driver(const nvml::Library& library, Caller& call, HostGpus& host) {
  const auto succeeds = [&](const auto& function, auto... arguments) {
    const int status = call(function, arguments...);
    if (status == nvml::kFunctionNotFound)
      host.problem = fmt::format("the NVML library has no {}", function.name);
    else if (status != nvml::kSuccess)
      host.problem = fmt::format("{}: {}", function.name, library.words_of(status));
    return status == nvml::kSuccess;
  };
  unsigned gpus = 0;
  if (!succeeds(library.init) || !succeeds(library.count, &gpus)) return;
  host.gpus.resize(gpus);
  for (unsigned i = 0; i < gpus; ++i) host.gpus[i].index = static_cast<int>(i);
  if (gpus == 0) host.problem = "the driver has no GPU";
  std::array<char, 96> driver{};
  int status = call(library.driver_version, driver.data(), static_cast<unsigned>(driver.size()));
  note_failure(library, library.driver_version.name, status, host.failed);
  if (status == nvml::kSuccess) host.driver_version = driver.data();
  nvml::ConfidentialState confidential{};
  status = call(library.confidential, &confidential);
  note_failure(library, library.confidential.name, status, host.failed);
  // Others have no such mode.
  if (status == nvml::kSuccess || lacks(status))
    host.confidential_computing = confidential.feature != 0;
  int cuda = 0;
  status = call(library.cuda_version, &cuda);
  note_failure(library, library.cuda_version.name, status, host.failed);
  if (status == nvml::kSuccess)
    host.cuda_driver_version = fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10);
}

/// A GPU's reading where an earlier call has not returned yet.
GpuReading still_stalled(const GpuReading& earlier) {
  GpuReading reading;
  reading.index = earlier.index;
  reading.uuid = earlier.uuid;
  reading.model = earlier.model;
  reading.serial = earlier.serial;
  reading.pci_id = earlier.pci_id;
  reading.pci_device_id = earlier.pci_device_id;
  reading.stalled = earlier.stalled;
  return reading;
}

}  // namespace

/// The driver is not shut down at the end: that call, too, might not return.
GpuReader::GpuReader(double deadline_s, const std::string& library, double whole_s)
    : deadline_s_(deadline_s), whole_s_(whole_s) {
  std::string problem;
  const nvml::FindFunction find = nvml::open_library(library, problem);
  if (!find) {
    host_.problem = problem;
    return;
  }
  library_ = std::make_shared<nvml::Library>(find);
  constexpr double kOpening = 0.8;
  const auto before = Caller::Clock::now();
  const auto open = [library = library_](Caller& call, HostGpus& host) {
    open_driver(*library, call, host);
  };
  host_ = Task<HostGpus>(limits(kOpening), {}, open).wait();
  tasks_.resize(host_.gpus.size());
  const std::chrono::duration<double> waited = Caller::Clock::now() - before;
  if (!host_.stalled.empty() && host_.gpus.empty() && !host_.problem)
    host_.problem =
        fmt::format("{} did not return within {:.2g} s", host_.stalled.back(), waited.count());
}

GpuReader::~GpuReader() = default;

/// Those of a call by when this share of the whole time is over.
Caller::Limits GpuReader::limits(double share) const {
  if (!std::isfinite(whole_s_)) return {deadline_s_};
  const auto time = std::chrono::duration<double>(share * whole_s_);
  return {deadline_s_, made_ + std::chrono::duration_cast<Caller::Clock::duration>(time)};
}

const HostGpus& GpuReader::read(bool inforom) {
  const auto body = [library = library_, inforom](Caller& call, GpuReading& to) {
    read_gpu(*library, call, to, inforom);
  };
  std::vector<std::size_t> started;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    GpuReading& last = host_.gpus[i];
    if (tasks_[i] && tasks_[i]->is_stuck()) {
      last = still_stalled(last);
      continue;
    }
    GpuReading reading;
    reading.index = last.index;
    tasks_[i] = std::make_unique<Task<GpuReading>>(limits(1), std::move(reading), body);
    started.push_back(i);
  }
  for (const std::size_t i : started) host_.gpus[i] = tasks_[i]->wait();
  return host_;
}

GpuHealth::GpuHealth(std::string uuid) : uuid_(std::move(uuid)) {
  if (uuid_.empty()) return;
  constexpr double kDeadline_s = 5;
  reader_ = std::make_unique<GpuReader>(kDeadline_s);
  last_ = read();
}

GpuReading GpuHealth::read() {
  const HostGpus& host = reader_->read();
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
  const auto difference = [](const Known<std::uint64_t>& from, const Known<std::uint64_t>& to) {
    const auto errors = grown(from, to);
    return errors ? static_cast<double>(*errors) : kUnknown;
  };
  return {difference(before.volatile_.corrected, last_.volatile_.corrected),
          difference(before.volatile_.uncorrected, last_.volatile_.uncorrected),
          difference(before.pcie_replays, last_.pcie_replays),
          difference(nvlink_errors(before), nvlink_errors(last_))};
}

// Of one reading, or two.

Known<std::uint64_t> nvlink_errors(const GpuReading& reading) {
  if (reading.nvlinks.empty() && reading.nvlink_count != 0) return std::nullopt;  // not reported
  std::uint64_t errors = 0;
  for (const NvlinkReading& link : reading.nvlinks)
    for (const auto& counter : {link.crc_errors, link.replay_errors, link.recovery_errors}) {
      if (!counter) return std::nullopt;
      errors += *counter;
    }
  return errors;
}

Known<std::uint64_t> grown(const Known<std::uint64_t>& before, const Known<std::uint64_t>& now) {
  if (!before || !now || *now < *before) return std::nullopt;
  return *now - *before;
}

Known<std::size_t> active_nvlinks(const GpuReading& reading) {
  if (reading.nvlinks.empty() && reading.nvlink_count != 0) return std::nullopt;
  std::size_t active = 0;
  for (const NvlinkReading& link : reading.nvlinks) {
    if (!link.active) return std::nullopt;
    active += *link.active;
  }
  return active;
}

Json health_record(const std::string& host, const std::string& time, double reading_ms,
                   const GpuReading& reading) {
  Json fields{{"host", host}, {"time", time}, {"reading_ms", reading_ms}};
  fields.update(Json(reading));
  fields.erase("nvlinks");
  fields.erase("processes");
  fields.erase("mig_devices");
  if (reading.processes) fields["process_count"] = reading.processes->size();
  if (reading.mig_devices)
    fields["mig_layout"] = fmt::format("{}", fmt::join(*reading.mig_devices, " "));
  if (reading.throttle_reasons)
    fields["reasons"] = text_of_throttle_reasons(reading.throttle_reasons);
  if (const auto active = active_nvlinks(reading); active && !reading.nvlinks.empty())
    fields["nvlinks_active"] = *active;
  if (const auto errors = nvlink_errors(reading)) fields["nvlink_errors"] = *errors;
  return fields;
}
}  // namespace shakedown::node
