#include "launch/node/monitor/monitor.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/fault.hpp"
#include "common/identity.hpp"
#include "common/nodes.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/stop_signals.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/monitor/monitor_output.hpp"

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Reads the GPUs of this host.
class HostMonitor {
 public:
  HostMonitor(const MonitorOptions& options, std::string host, bool stalls)
      : host_(std::move(host)), reader_(open_reader(options.call_deadline_s, stalls)) {}

  const HostGpus& host() const { return reader_->host(); }
  double elapsed_s() const { return Seconds(Clock::now() - start_).count(); }

  HostSample read() {
    HostSample sample;
    sample.host = host_;
    sample.time = utc_now();
    sample.elapsed_s = elapsed_s();
    sample.cpu_s = cpu_seconds() - cpu_start_;
    sample.read = reader_->read();
    sample.reading_ms = 1e3 * (elapsed_s() - sample.elapsed_s);
    return sample;
  }

 private:
  std::string host_;
  std::unique_ptr<GpuReader> reader_;
  Clock::time_point start_ = Clock::now();
  double cpu_start_ = cpu_seconds();
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
    const std::string mine = stopped ? "" : text_of(monitor.read());
    const bool ends = stopped || count == options.count ||
                      (options.seconds > 0 && monitor.elapsed_s() >= options.seconds);
    const auto turns = session.all_gather(Turn{Seconds(Clock::now() - start).count(), ends});
    const Clock::time_point gathered = Clock::now();
    const auto texts = session.all_gather(mine);
    std::vector<HostSample> samples;
    if (session.is_root())
      for (const std::string& text : texts)
        if (!text.empty()) samples.push_back(host_sample_of(text));
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

std::optional<Fault> injected(const MonitorOptions& options, const MpiSession& session) {
  const auto fault = parse_fault(options.fault, {FaultKind::stall}, session.world_size());
  if (fault) say(session, line_of(*fault));
  return fault;
}

}  // namespace

struct GpuMonitor::State {
  State(const MonitorOptions& given, const MpiSession& whole) : options(given), session(whole) {
    const auto fault = injected(options, session);
    if (session.is_root() && !options.save_readings.empty())
      check_writable({"--save-readings", options.save_readings});
    const NodeMap nodes = map_nodes(session.hosts(), options.pretend_nodes);
    const int rank = session.rank();
    readers = session.split(nodes.local_rank[static_cast<std::size_t>(rank)] == 0 ? 0 : -1);
    const std::string& node = nodes.name_of(rank);
    if (readers) monitor.emplace(options, node, fault && nodes.name_of(fault->rank) == node);
  }

  const MonitorOptions& options;
  const MpiSession& session;
  std::unique_ptr<MpiSession> readers;  // the lowest ranks of the hosts; null on the others
  std::optional<HostMonitor> monitor;
};

GpuMonitor::GpuMonitor(const MonitorOptions& options, const MpiSession& session)
    : state_(std::make_unique<State>(options, session)) {}

GpuMonitor::~GpuMonitor() = default;

Json GpuMonitor::identity() const {
  Json fields = Json::object();
  if (state_->monitor && state_->monitor->host().driver_version)
    fields["driver"] = *state_->monitor->host().driver_version;
  return fields;
}

ExitCode GpuMonitor::run(Record& record, Json& cost) {
  const StopSignals signals;  // of ranks that wait, too: none of them ends before the others
  if (!state_->readers) {
    state_->session.wait_idle();
    return ExitCode::pass;
  }
  const ExitCode code =
      monitor_hosts(state_->options, *state_->readers, signals, *state_->monitor, record, cost);
  state_->session.barrier();
  return code;
}

}  // namespace shakedown::node
