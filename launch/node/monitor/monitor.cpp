#include "launch/node/monitor/monitor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/placement.hpp"
#include "common/program.hpp"
#include "common/record.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
namespace {

const std::vector<Column> kColumns{{"", "host", 10},  {"", "gpu", 3},     {"sm", "%", 3},
                                   {"mem", "%", 3},   {"used", "GiB", 5}, {"gpu", "C", 3},
                                   {"mem", "C", 3},   {"power", "W", 5},  {"sm", "MHz", 4},
                                   {"mem", "MHz", 4}, {"new", "ECC", 5},  {"nvlink", "out", 6},
                                   {"GB/s", "in", 6}, {"pcie", "out", 6}, {"GB/s", "in", 6}};
constexpr std::size_t kReasonsWidth = 22;

/// The host's own name, the end of one that is too long.
std::string short_name(const std::string& host) {
  const std::string name = host.substr(0, host.find('.'));
  constexpr std::size_t kWidth = 10;
  return name.size() <= kWidth ? name : name.substr(name.size() - kWidth);
}

std::string cell(Known<double> value, int digits = 0, double scale = 1) {
  return value ? fmt::format("{:.{}f}", *value * scale, digits) : "-";
}

std::string cell(Known<std::uint64_t> value, double scale) {
  return cell(value ? Known<double>(*value) : std::nullopt, 1, scale);
}

std::string errors_of(const Growth& growth) {
  const auto text = [](Known<std::uint64_t> count) {
    return count ? fmt::format("{}", *count) : std::string("-");
  };
  if (!growth.ecc_corrected && !growth.ecc_uncorrected) return "-";
  return text(growth.ecc_corrected) + "/" + text(growth.ecc_uncorrected);
}

/// The reasons that fit, and the number of those that do not.
std::string reasons_of(const GpuReading& reading) {
  if (!reading.stalled.empty()) return "stalled";
  if (!reading.throttle_reasons) return "-";
  std::string text = text_of_throttle_reasons(reading.throttle_reasons);
  if (text.empty()) return "none";
  if (text.size() <= kReasonsWidth) return text;
  const std::size_t first = text.find(' ');
  const auto more = std::count(text.begin(), text.end(), ' ');
  return text.substr(0, first) + fmt::format(" +{}", more);
}

std::string with_last(std::string line, const std::string& last) {
  line.pop_back();
  return line + "  " + last + "\n";
}

Known<double> rate_gbs(Known<std::uint64_t> bytes, double seconds) {
  return bytes && seconds > 0 ? Known<double>(static_cast<double>(*bytes) / seconds / 1e9)
                              : std::nullopt;
}

}  // namespace

std::string monitor_heading(const std::string& time) {
  std::vector<Column> columns = kColumns;
  columns.front().over = time.c_str();
  return with_last(heading(columns), "throttle reasons");
}

std::string monitor_line(const std::string& host, const GpuReading& reading, const Growth& growth) {
  constexpr double kGib = 1.0 / (1ULL << 30U);
  return with_last(
      row(kColumns,
          {short_name(host), fmt::format("{}", reading.index), cell(reading.utilisation_percent),
           cell(reading.memory_utilisation_percent), cell(reading.memory_used_bytes, kGib),
           cell(reading.temperature_c), cell(reading.memory_temperature_c), cell(reading.power_w),
           cell(reading.sm_clock_mhz), cell(reading.memory_clock_mhz), errors_of(growth),
           cell(growth.nvlink_sent_gbs, 1), cell(growth.nvlink_received_gbs, 1),
           cell(reading.pcie_sent_mbs, 2, 1e-3), cell(reading.pcie_received_mbs, 2, 1e-3)}),
      reasons_of(reading));
}

Growth growth(const GpuReading& before, const GpuReading& now, double seconds) {
  return {rate_gbs(grown(before.nvlink_sent_bytes, now.nvlink_sent_bytes), seconds),
          rate_gbs(grown(before.nvlink_received_bytes, now.nvlink_received_bytes), seconds),
          grown(before.volatile_.corrected, now.volatile_.corrected),
          grown(before.volatile_.uncorrected, now.volatile_.uncorrected)};
}

/// What one host reads at one moment.
struct HostSample {
  std::string host;
  std::string time;       // UTC
  double elapsed_s = 0;   // since the host's monitor started
  double cpu_s = 0;       // that the process has used in that time
  double reading_ms = 0;  // that the reading then took
  HostGpus read;
};
FIELDS_OF(HostSample, host, time, elapsed_s, cpu_s, reading_ms, read)

// What is printed and recorded of all hosts, on rank 0.

namespace {

constexpr int kScreen = 24;  // lines after which the heading is repeated

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

class MonitorOutput {
 public:
  MonitorOutput(const MonitorOptions& options, Record& record)
      : options_(options), record_(record) {}

  /// One reading of every host that has made one.
  void add(std::vector<HostSample> samples) {
    if (first_host_.empty() && !samples.empty()) first_host_ = samples.front().host;
    separate(samples);
    for (HostSample& sample : samples) {
      if (sample.read.problem)
        notice(fmt::format("{}: no GPU can be read: {}", sample.host, *sample.read.problem));
      else
        for (const std::string& call : sample.read.stalled)
          notice(fmt::format("{}: {}", sample.host, late(call)));
      for (const GpuReading& reading : sample.read.gpus) add(sample, reading);
      reading_ms_.push_back(sample.reading_ms);
      last_[sample.host] = std::move(sample);
    }
  }

  /// Whether no host of the last reading has a GPU.
  bool sees_nothing() const {
    return std::ranges::all_of(last_,
                               [](const auto& host) { return host.second.read.gpus.empty(); });
  }

  /// The monitor's own cost, as fields of a record: those that are known.
  Json cost() const {
    double share = 0;  // of the host that spends most
    for (const auto& [host, sample] : last_)
      if (sample.elapsed_s > 0) share = std::max(share, sample.cpu_s / sample.elapsed_s);
    Json fields = Json::object();
    if (!reading_ms_.empty()) fields["reading_ms_p50"] = median_of(reading_ms_);
    if (reading_ms_.size() > last_.size()) fields["cpu_share"] = share;  // between two readings
    return fields;
  }

  /// The monitor's own cost, and verdicts on what could not be read.
  ExitCode finish() {
    if (const Json spent = cost(); !counts_.empty())
      print(fmt::format(
          "cost      a reading takes {:.1f} ms (median){}\n",
          spent.at("reading_ms_p50").get<double>(),
          spent.contains("cpu_share")
              ? fmt::format("; {:.4f} CPU seconds per second", spent.at("cpu_share").get<double>())
              : ""));
    if (!options_.save_readings.empty() && !first_host_.empty()) save(last_.at(first_host_));
    const std::vector<Verdict> found = verdicts();
    for (const Verdict& verdict : found) {
      record_.write("verdict", record_of(verdict));
      print(line_of(verdict) + "\n");
    }
    return worst(found);
  }

 private:
  using Gpu = std::pair<std::string, int>;  // host, index
  struct Count {
    int readings = 0, stalled = 0;
  };

  std::string late(const std::string& call) const {
    return fmt::format("{} did not return within {:g} s", call, options_.call_deadline_s);
  }

  void add(const HostSample& sample, const GpuReading& reading) {
    Growth grown;
    if (const auto before = last_.find(sample.host); before != last_.end())
      for (const GpuReading& earlier : before->second.read.gpus)
        if (earlier.index == reading.index)
          grown = growth(earlier, reading, sample.elapsed_s - before->second.elapsed_s);
    print(monitor_line(sample.host, reading, grown));
    const std::string gpu = fmt::format("{} GPU {}: ", sample.host, reading.index);
    for (const std::string& call : reading.stalled) notice(gpu + late(call));
    for (const std::string& failure : reading.failed) notice(gpu + failure);
    Json fields = health_record(sample.host, sample.time, sample.reading_ms, reading);
    if (grown.nvlink_sent_gbs) fields["nvlink_sent_gbs"] = *grown.nvlink_sent_gbs;
    if (grown.nvlink_received_gbs) fields["nvlink_received_gbs"] = *grown.nvlink_received_gbs;
    record_.write("health", fields);
    Count& count = counts_[{sample.host, reading.index}];
    ++count.readings;
    count.stalled += !reading.stalled.empty();
  }

  /// Prints what comes before a reading's lines: its time, and now and then the heading.
  void separate(const std::vector<HostSample>& samples) {
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

  /// Prints a line that has not been printed yet.
  void notice(const std::string& text) {
    if (notices_.insert(text).second) print(text + "\n");
  }

  void save(const HostSample& sample) const {
    const Json source{{"source", fmt::format("recorded by gpu_monitor of revision {} on {} at {}",
                                             git_revision(), sample.host, sample.time)}};
    write_file({"--save-readings", options_.save_readings}, [&](std::ostream& out) {
      out << json_text(merged(source, sample.read), 1) << "\n";
    });
  }

  /// ": GPU is lost"; empty where the GPU was read each time.
  std::string why_not_read(const std::string& host, const GpuReading& last) const {
    const Count& count = counts_.at({host, last.index});
    if (!last.stalled.empty()) return ": " + late(last.stalled.front());
    if (count.stalled > 0)
      return fmt::format(" at {} of {} readings: {}", count.stalled, count.readings,
                         late("a call"));
    if (!last.power_w && !last.temperature_c && !last.sm_clock_mhz)
      return ": " + (last.failed.empty() ? "NVML reports no value" : last.failed.front());
    return "";
  }

  std::vector<Verdict> verdicts() const {
    std::vector<Verdict> found;
    const auto could_not_read = [&](Scope scope, const std::string& name, const std::string& cause,
                                    const std::string& action) {
      found.push_back({scope, name, Outcome::inconclusive, cause, std::nullopt, action});
    };
    if (last_.empty())
      could_not_read(Scope::job, "gpu_monitor", "no reading was made", "run again");
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

  const MonitorOptions& options_;
  Record& record_;
  std::map<std::string, HostSample> last_;  // by host
  std::map<Gpu, Count> counts_;
  std::set<std::string> notices_;
  std::vector<double> reading_ms_;
  std::string first_host_;
  int lines_ = 0;  // since the heading
};

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Of all threads of this process.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Reads the GPUs of this host.
struct HostMonitor {
  std::string host;
  std::unique_ptr<GpuReader> reader;
  Clock::time_point start = Clock::now();
  double cpu_start_s = cpu_seconds();

  double elapsed_s() const { return Seconds(Clock::now() - start).count(); }
  HostSample read() const {
    HostSample sample{host, utc_now(), elapsed_s(), cpu_seconds() - cpu_start_s, 0, reader->read()};
    sample.reading_ms = 1e3 * (elapsed_s() - sample.elapsed_s);
    return sample;
  }
};

/// One reading's place in time, and whether it is a rank's last.
struct Turn {
  double busy_s = 0;
  bool last = false;
};

/// Sleeps until then, or until a signal.
void wait_until(Clock::time_point then, const StopSignals& signals) {
  while (signals.received().empty() && Clock::now() < then)
    std::this_thread::sleep_until(std::min(then, Clock::now() + std::chrono::milliseconds(50)));
}

/// Of the ranks that read.
ExitCode monitor_hosts(const MonitorOptions& options, const MpiSession& session,
                       const StopSignals& signals, HostMonitor& monitor, Record& record,
                       Json& cost) {
  MonitorOutput output(options, record);
  session.barrier();
  bool last = false;
  for (int count = 1; !last; ++count) {
    const Clock::time_point start = Clock::now();
    const bool stopped = !signals.received().empty();
    const std::string mine = stopped ? "" : json_text(monitor.read());
    const bool ends = stopped || count == options.count ||
                      (options.seconds > 0 && monitor.elapsed_s() >= options.seconds);
    const auto turns = session.all_gather(Turn{Seconds(Clock::now() - start).count(), ends});
    const Clock::time_point gathered = Clock::now();
    std::vector<HostSample> samples;
    for (const std::string& text : session.gather(mine))
      if (!text.empty()) samples.push_back(read_as<HostSample>(Json::parse(text)));
    output.add(std::move(samples));
    double busy_s = 0;
    for (const Turn& turn : turns) {
      busy_s = std::max(busy_s, turn.busy_s);
      last = last || turn.last;
    }
    const bool blind = session.is_root() && output.sees_nothing();
    last = session.all_gather(last || blind ? 1.0 : 0.0).front() != 0;
    const Seconds rest(std::max(0.0, options.interval_s - busy_s));
    if (!last) wait_until(gathered + std::chrono::duration_cast<Clock::duration>(rest), signals);
  }
  if (!session.is_root()) return ExitCode::pass;
  cost = output.cost();
  return output.finish();
}

}  // namespace

ExitCode gpu_monitor(const MonitorOptions& options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.record}, {"--save-readings", options.save_readings}});
  session.set_timeout(options.timeout_s);
  Record record(session.is_root() ? options.record : "");
  if (session.is_root() && !options.save_readings.empty())
    check_writable({"--save-readings", options.save_readings});
  const NodeMap nodes = map_nodes(session.hosts(), options.pretend_nodes);
  const auto rank = static_cast<std::size_t>(session.rank());
  const std::string& node = nodes.name_of(session.rank());
  const auto readers = session.split(nodes.local_rank[rank] == 0 ? 0 : -1);
  std::optional<HostMonitor> monitor;
  if (readers) monitor = HostMonitor{node, std::make_unique<GpuReader>(options.call_deadline_s)};
  Json run = describe_process(set, session.hosts(), session.boot_ids());
  if (monitor && monitor->reader->host().driver_version)
    run["driver"] = *monitor->reader->host().driver_version;
  record.write("run", run);
  Json cost = Json::object();
  const auto monitored = [&] {
    const StopSignals signals;  // of ranks that wait, too: none of them ends before the others
    if (!readers) {
      session.wait_idle();
      return ExitCode::pass;
    }
    const ExitCode code = monitor_hosts(options, *readers, signals, *monitor, record, cost);
    session.barrier();
    return code;
  };
  return recorded(record, monitored, cost);
}

void declare_options(OptionSet& options, MonitorOptions& values) {
  options.heading("Readings");
  options.add("--interval", values.interval_s, "time from one reading to the next")
      .at_least(0.05)
      .metavar("SECONDS");
  options.add("--seconds", values.seconds, "time after which the monitor ends")
      .at_least(0.05)
      .metavar("SECONDS")
      .default_text("until a signal");
  options.add("--count", values.count, "readings after which the monitor ends")
      .at_least(1)
      .default_text("until a signal");
  options
      .add("--call-deadline", values.call_deadline_s,
           "time after which a call of NVML that has not returned is reported, and its GPU is no "
           "longer read")
      .at_least(0.001)
      .metavar("SECONDS");
  options
      .add("--timeout", values.timeout_s,
           "time after which a node that does not answer ends the monitor")
      .at_least(0.1)
      .metavar("SECONDS");
  options.heading("Output");
  options
      .add("--save-readings", values.save_readings,
           "JSON file for the last readings of the first host, with every field that NVML reports")
      .metavar("FILE");
  options.add("--record", values.record, ".jsonl file to which the readings are appended")
      .metavar("FILE");
  declare_pretended_nodes(options, values.pretend_nodes);
}

}  // namespace shakedown::node
