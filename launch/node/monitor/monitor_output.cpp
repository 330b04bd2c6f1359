#include "launch/node/monitor/monitor_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/output_file.hpp"
#include "common/statistics.hpp"
#include "common/version.hpp"

namespace shakedown::node {
namespace {

constexpr int kScreen = 24;  // lines after which the heading is repeated

const GpuReading* find(const HostSample& sample, int index) {
  for (const GpuReading& reading : sample.read.gpus)
    if (reading.index == index) return &reading;
  return nullptr;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::string line_of_cost(const Json& cost) {
  return fmt::format(
      "cost      a reading takes {:.1f} ms (median){}\n", cost.at("reading_ms_p50").get<double>(),
      cost.contains("cpu_share")
          ? fmt::format("; {:.4f} CPU seconds per second", cost.at("cpu_share").get<double>())
          : "");
}

}  // namespace

MonitorOutput::MonitorOutput(const MonitorOptions& options, Record& record)
    : options_(options), record_(record) {}

void MonitorOutput::add(std::vector<HostSample> samples) {
  if (first_host_.empty() && !samples.empty()) first_host_ = samples.front().host;
  separate(samples);
  for (HostSample& sample : samples) {
    if (sample.read.problem)
      notice(fmt::format("{}: no GPU can be read: {}", sample.host, *sample.read.problem));
    else
      for (const std::string& call : sample.read.stalled)
        notice(fmt::format("{}: {} did not return within {:g} s", sample.host, call,
                           options_.call_deadline_s));
    for (const GpuReading& reading : sample.read.gpus) add(sample, reading);
    reading_ms_.push_back(sample.reading_ms);
    last_[sample.host] = std::move(sample);
  }
}

void MonitorOutput::add(const HostSample& sample, const GpuReading& reading) {
  const auto before = last_.find(sample.host);
  const GpuReading* const earlier =
      before == last_.end() ? nullptr : find(before->second, reading.index);
  const Growth grown = earlier == nullptr
                           ? Growth{}
                           : growth(*earlier, reading, sample.elapsed_s - before->second.elapsed_s);
  print(monitor_line(sample.host, reading, grown));
  for (const std::string& call : reading.stalled)
    notice(fmt::format("{} GPU {}: {} did not return within {:g} s", sample.host, reading.index,
                       call, options_.call_deadline_s));
  for (const std::string& failure : reading.failed)
    notice(fmt::format("{} GPU {}: {}", sample.host, reading.index, failure));
  record_.write("health", record_of(sample, reading, grown));
  tallies_[{sample.host, reading.index}].add(reading, grown);
}

void MonitorOutput::separate(const std::vector<HostSample>& samples) {
  int lines = 0;
  for (const HostSample& sample : samples) lines += static_cast<int>(sample.read.gpus.size());
  if (lines == 0) return;
  const std::string time = samples.front().time.substr(11);  // of "2026-11-23T05:00:00Z"
  if (lines_ == 0 || lines_ >= kScreen) {
    print(monitor_heading(time));
    lines_ = 0;
  } else if (lines > 1) {
    print(time + "\n");
  }
  lines_ += lines;
}

void MonitorOutput::notice(const std::string& text) {
  if (notices_.insert(text).second) print(text + "\n");
}

bool MonitorOutput::sees_nothing() const {
  return std::ranges::all_of(last_, [](const auto& host) { return host.second.read.gpus.empty(); });
}

Json MonitorOutput::cost() const {
  double share = 0;  // of the host that spends most
  for (const auto& [host, sample] : last_)
    if (sample.elapsed_s > 0) share = std::max(share, sample.cpu_s / sample.elapsed_s);
  Json fields = Json::object();
  if (!reading_ms_.empty()) fields["reading_ms_p50"] = median_of(reading_ms_);
  if (reading_ms_.size() > last_.size()) fields["cpu_share"] = share;  // between two readings
  return fields;
}

std::string MonitorOutput::why_not_read(const std::string& host, const GpuReading& last) const {
  const Tally& tally = tallies_.at({host, last.index});
  if (!last.stalled.empty())
    return fmt::format(": {} did not return within {:g} s", last.stalled.front(),
                       options_.call_deadline_s);
  if (tally.stalled() > 0)
    return fmt::format(" at {} of {} readings: a call did not return within {:g} s",
                       tally.stalled(), tally.readings(), options_.call_deadline_s);
  if (!last.power_w && !last.temperature_c && !last.sm_clock_mhz)
    return ": " + (last.failed.empty() ? "NVML reports no value" : last.failed.front());
  return "";
}

std::vector<Verdict> MonitorOutput::verdicts() const {
  std::vector<Verdict> found;
  const auto could_not_read = [&](Scope scope, const std::string& name, const std::string& cause,
                                  const std::string& action) {
    found.push_back({scope, name, Outcome::inconclusive, cause, std::nullopt, action});
  };
  if (last_.empty()) could_not_read(Scope::job, "gpu_monitor", "no reading was made", "run again");
  for (const auto& [host, sample] : last_) {
    if (sample.read.problem)
      could_not_read(Scope::node, host, "no GPU can be read: " + *sample.read.problem,
                     "check that the NVIDIA driver is loaded and the job has GPUs");
    for (const GpuReading& reading : sample.read.gpus)
      if (const std::string why = why_not_read(host, reading); !why.empty())
        could_not_read(Scope::gpu, reading.uuid.empty() ? "unknown" : reading.uuid,
                       fmt::format("GPU {} of {} could not be read{}", reading.index, host, why),
                       "drain the node, reset the GPU or reboot");
  }
  return found;
}

ExitCode MonitorOutput::finish() {
  if (!tallies_.empty()) print("\n" + Tally::heading());
  for (const auto& [gpu, tally] : tallies_) print(tally.line(gpu.first, gpu.second));
  if (!tallies_.empty()) print(line_of_cost(cost()));
  if (!options_.save_readings.empty() && !first_host_.empty()) {
    const HostSample& sample = last_.at(first_host_);
    const Json source{{"source", fmt::format("recorded by gpu_monitor of revision {} on {} at {}",
                                             git_revision(), sample.host, sample.time)}};
    write_file({"--save-readings", options_.save_readings}, [&](std::ostream& out) {
      out << json_text(merged(source, to_json(sample.read)), 1) << "\n";
    });
  }
  const std::vector<Verdict> found = verdicts();
  for (const Verdict& verdict : found) {
    record_.write("verdict", record_of(verdict));
    print(line_of(verdict) + "\n");
  }
  return worst(found);
}

}  // namespace shakedown::node
