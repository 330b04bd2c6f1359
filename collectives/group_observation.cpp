#include "collectives/group_observation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace shakedown::collectives {

judge::Observation observed_group(const std::string& metric, const std::string& unit,
                                  const Communicator& transport, const NodeMap& nodes,
                                  const std::vector<Unit>& units, const std::vector<int>& ranks) {
  std::map<int, int> per_node;
  for (const int rank : ranks) ++per_node[nodes.node_of[static_cast<std::size_t>(rank)]];
  std::vector<std::string> names;
  int most = 0;
  for (const auto& [node, count] : per_node) {
    names.push_back(nodes.names[static_cast<std::size_t>(node)]);
    most = std::max(most, count);
  }
  judge::Observation observation =
      observed(metric, unit, names.size() == 1 ? Scope::node : Scope::group,
               fmt::format("{}", fmt::join(names, ",")), units, ranks);
  observation.conditions = {{"transport", transport.transport()},
                            {"world_size", std::to_string(ranks.size())},
                            {"ranks_per_node", std::to_string(most)}};
  observation.versions = versions_of(transport);
  return observation;
}

std::map<std::string, std::string> versions_of(const Communicator& transport) {
  if (is_mpi(transport)) return {};
  for (const LibraryVersion& version : library_versions(BackendKind::gpu))
    if (version.name == transport.transport()) return {{version.name, version.running}};
  return {};
}

}  // namespace shakedown::collectives
