// The device that each rank of a job runs on, as `metric` lines identify it.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/judge/observation.hpp"
#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/placement.hpp"

namespace shakedown {

struct Unit {
  int rank = 0;
  std::string host, uuid, board;  // uuid: empty on the CPU backend
  std::string compute_capability;
  int multiprocessors = 0;
  GpuDescription gpu;
};

/// Of every rank, complete on each. Collective.
std::vector<Unit> units_of(const MpiSession& session, const Backend& backend);

/// An observation, without samples, of one rank's device, of a pair ("2->5"; "2<->5" where
/// `both_ways`), or of what all `ranks` do together. That is of a node where they are one node's,
/// else of the group of these nodes; its conditions are the transport and how many ranks take part,
/// its version the transport's. Board and ids are the first rank's.
judge::Observation observed(const std::string& metric, const std::string& unit, const Unit& of);
judge::Observation observed(const std::string& metric, const std::string& unit, const Unit& from,
                            const Unit& to, bool both_ways);
judge::Observation observed(const std::string& metric, const std::string& unit,
                            const Communicator& transport, const NodeMap& nodes,
                            const std::vector<Unit>& units, const std::vector<int>& ranks);

// What connects two ranks' devices: links are compared within their path class.

struct Path {
  /// Of GPUs of one node, or of one fabric: nvswitch, nvlink, nvlink_bridge; of a node:
  /// pcie_switch, host_bridge, socket, unknown, and on the CPU backend host. Between nodes:
  /// network_rail (the same local rank), network.
  std::string path_class;
  std::string clique;          // of a fabric of several nodes that both are on; empty: none
  double peak_gbs = kUnknown;  // of the NVLinks, one way

  bool over_nvlink() const { return path_class.starts_with("nv"); }
};

/// What one rank's GPU is connected to.
struct PathEnd {
  NvlinkWires wires;
  std::vector<Between> node;  // what is between it and the GPU of each local rank
};

/// Pure: of every rank's end.
class Paths {
 public:
  Paths(NodeMap nodes, std::vector<Unit> units, std::vector<PathEnd> ends);
  Path between(int rank, int other) const;

 private:
  NodeMap nodes_;
  std::vector<Unit> units_;
  std::vector<PathEnd> ends_;
};

/// From NVML of every rank. Collective.
Paths paths_of(const MpiSession& session, const NodeMap& nodes, const std::vector<Unit>& units);

}  // namespace shakedown
