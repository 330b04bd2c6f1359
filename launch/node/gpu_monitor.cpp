// bin/gpu_monitor: what the GPUs of all hosts of a job do, second by second, through NVML.
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "launch/node/monitor/monitor.hpp"

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
