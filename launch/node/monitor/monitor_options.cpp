#include "launch/node/monitor/monitor_options.hpp"

#include "common/fault.hpp"
#include "common/nodes.hpp"
#include "common/options.hpp"

namespace shakedown::node {

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
  declare_fault_option(options, values.fault);
  declare_pretended_nodes(options, values.pretend_nodes);
}

}  // namespace shakedown::node
