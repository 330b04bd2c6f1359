#include "launch/node/health/check/check_options.hpp"

#include "common/fault.hpp"
#include "common/options.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {

void declare_options(OptionSet& set, CheckOptions& options) {
  set.heading("Check");
  set.add("--expect-gpus", options.expected.gpus, "GPUs that each node should have; fewer is FAIL")
      .at_least(0)
      .metavar("N")
      .default_text("Slurm's variables, else most nodes, else the PCI bus");
  set.add("--xid-window", options.expected.xid_window_h,
          "age up to which a fatal XID is FAIL; an older one is WARN")
      .at_least(0)
      .metavar("HOURS");
  set.add("--strict", options.strict,
          "exit with 3 (INCONCLUSIVE) when a check is UNKNOWN or WARN and none is FAIL");
  set.add("--passive", options.passive,
          "only read: no GPU context, no communication, at most --deadline; safe next to a running "
          "job, for Slurm's HealthCheckProgram. Each process checks its own node");
  set.add("--deadline", options.deadline_s,
          "time within which a passive check ends. What has not been read by then is UNKNOWN; a "
          "call of the driver that has not returned is FAIL, or UNKNOWN and exit code 3 where it "
          "opens "
          "the GPUs and persistence mode is not known to be on")
      .at_least(1)
      .metavar("SECONDS")
      .only_with({"--passive"});
  set.add("--record", options.record, ".jsonl file to which the findings are appended")
      .metavar("FILE");
  set.add_text("--list-checks", "print every check with what it looks at, and exit",
               list_of_checks);
  shakedown::declare_options(set, options.backend);
  set.heading("");
  set.add("--readings", options.source.readings, "file with the GPUs' readings").metavar("FILE");
  set.add("--root", options.source.root, "folder in the place of / before /proc and /sys")
      .metavar("DIR");
  declare_fault_option(set, options.fault);
}

}  // namespace shakedown::node
