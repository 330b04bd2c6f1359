// What bin/gpu_monitor prints and records of all hosts, on rank 0.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/record.hpp"
#include "common/verdict.hpp"
#include "launch/node/monitor/host_sample.hpp"
#include "launch/node/monitor/monitor_options.hpp"
#include "launch/node/monitor/monitor_table.hpp"

namespace shakedown::node {

class MonitorOutput {
 public:
  MonitorOutput(const MonitorOptions& options, Record& record);

  /// One reading of every host that has made one.
  void add(std::vector<HostSample> samples);
  /// Whether no host of the last reading has a GPU.
  bool sees_nothing() const;
  /// The monitor's own cost, as fields of a record: those that are known.
  Json cost() const;
  /// The summary, the monitor's own cost, and verdicts on what could not be read.
  ExitCode finish();

 private:
  using Gpu = std::pair<std::string, int>;  // host, index

  void add(const HostSample& sample, const GpuReading& reading);
  /// Prints what comes before a reading's lines: its time, and now and then the heading.
  void separate(const std::vector<HostSample>& samples);
  /// ": GPU is lost"; empty where the GPU was read each time.
  std::string why_not_read(const std::string& host, const GpuReading& last) const;
  /// Prints a line that has not been printed yet.
  void notice(const std::string& text);
  std::vector<Verdict> verdicts() const;

  const MonitorOptions& options_;
  Record& record_;
  std::map<std::string, HostSample> last_;  // by host
  std::map<Gpu, Tally> tallies_;
  std::set<std::string> notices_;
  std::vector<double> reading_ms_;
  std::string first_host_;
  int lines_ = 0;  // since the heading
};

}  // namespace shakedown::node
