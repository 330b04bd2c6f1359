// The options and the steps of bin/node_check.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/record.hpp"
#include "launch/node/health/check/own_process.hpp"
#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown {

class MpiSession;
class OptionSet;

}  // namespace shakedown

namespace shakedown::node {

struct CheckOptions {
  Expected expected;
  bool strict = false;
  bool passive = false;
  double deadline_s = 5;
  std::string record, fault;
  ReportSource source;
  BackendOptions backend;
};
void declare_options(OptionSet& set, CheckOptions& options);

/// Reads and judges all nodes of the job, prints and records what was found; then, where the nodes
/// are fit for it, sums over all ranks while the links are looked at. Collective.
ExitCode check_nodes(const CheckOptions& options, MpiSession& session, Record& record);

/// The same of this host alone, only reading, with a watchdog. Of several processes of a host the
/// first alone looks.
ExitCode check_passively(const CheckOptions& options, Record& record);

/// What a passive check comes to that did not end by itself. One that surely hangs is FAIL.
ExitCode conclude_hung(const Ended& ended, Record& record);

/// Whether a launcher itself started this process as another than the first of its host. A process
/// that only inherits the launcher's variables checks.
bool is_another_of_its_host();

}  // namespace shakedown::node
