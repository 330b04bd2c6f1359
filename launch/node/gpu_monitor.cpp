// bin/gpu_monitor: what the GPUs of all hosts of a job do, second by second, through NVML.
#include <nlohmann/json.hpp>

#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "launch/node/monitor/monitor.hpp"

namespace shakedown::node {
namespace {

ExitCode gpu_monitor(const MonitorOptions& options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.record}, {"--save-readings", options.save_readings}});
  session.set_timeout(options.timeout_s);
  Record record(session.is_root() ? options.record : "");
  GpuMonitor monitor(options, session);
  record.write("run", merged(describe_process(set, session.hosts(), session.boot_ids()),
                             monitor.identity()));
  Json cost = Json::object();
  return recorded(
      record, [&] { return monitor.run(record, cost); }, cost);
}

}  // namespace
}  // namespace shakedown::node

int main(int argc, char** argv) {
  using namespace shakedown;
  node::MonitorOptions options;
  OptionSet set("gpu_monitor",
                "Prints what the GPUs of every host of a job do, one line per GPU and reading.");
  node::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv,
                     [&](MpiSession& session) { return node::gpu_monitor(options, set, session); });
}
