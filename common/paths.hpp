// What connects two ranks' devices: links are compared within their path class.
#pragma once

#include <string>
#include <vector>

#include "common/nodes.hpp"
#include "common/nvml.hpp"
#include "common/units.hpp"

namespace shakedown {

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
