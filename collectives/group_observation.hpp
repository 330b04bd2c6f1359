// What `metric` lines of exchanges between several ranks have in common.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/placement.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

/// What all of `ranks` do together: of a node where they are one node's, else of the group of these
/// nodes. Its conditions are the transport and how many ranks take part, its version the
/// transport's.
judge::Observation observed_group(const std::string& metric, const std::string& unit,
                                  const Communicator& transport, const NodeMap& nodes,
                                  const std::vector<Unit>& units, const std::vector<int>& ranks);

/// {"nccl", "2.28.9"} of NCCL; empty of MPI.
std::map<std::string, std::string> versions_of(const Communicator& transport);

}  // namespace shakedown::collectives
