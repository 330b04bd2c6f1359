// What one node reports: its GPUs' readings and its host's facts.
#pragma once

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown {
class MpiSession;
}

namespace shakedown::node {

struct NodeReport {
  std::string host;
  HostGpus gpus;
  double reading_ms = 0;                 // that reading them took
  Json facts = Json::object();           // as read_facts has them
  std::vector<int> our_pids;             // of the job's ranks here
  std::vector<std::string> loaded_gpus;  // UUIDs of those that this program kept busy meanwhile
  bool was_open = false;                 // the driver had been opened before: it is not slow again
  Known<double> clock_s = {};            // the host's, at a moment that is the same for all nodes
};

/// In the place of the machine, for tests; empty: the machine.
struct ReportSource {
  std::string root;           // of /proc and /sys
  std::string readings;       // file with the GPUs' readings
  double call_s = 5;          // deadline of a call to the driver
  double whole_s = INFINITY;  // of all of them
  double facts_s = 3;         // of the host's facts: a busy node is slow
  bool inforom = false;       // whether the GPUs' checksums of it are verified
  bool facts = true;          // whether the host is read too, or its GPUs alone
};
/// Of this host: its files and its GPUs are read at the same time. Throws UsageError where the file
/// of readings is none. `on_facts` runs in another thread as soon as the files are read.
NodeReport read_node(
    const std::string& host, const ReportSource& source,
    const std::function<void(const Json& facts)>& on_facts = [](const Json&) {});

/// One report per node of the job, complete on every rank: the first rank of each node reads.
/// Collective.
std::vector<NodeReport> gather_reports(const MpiSession& session, const ReportSource& source);

/// Reads the nodes' clocks at one moment, within milliseconds. Collective.
void read_clocks(const MpiSession& session, std::vector<NodeReport>& reports);

}  // namespace shakedown::node
