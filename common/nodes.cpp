#include "common/nodes.hpp"

#include <algorithm>

namespace shakedown {

const std::string& NodeMap::name_of(int rank) const {
  return names[static_cast<std::size_t>(node_of[static_cast<std::size_t>(rank)])];
}

std::vector<int> NodeMap::ranks_per_node() const {
  std::vector<int> ranks(names.size());
  for (int node : node_of) ++ranks[static_cast<std::size_t>(node)];
  return ranks;
}

NodeMap map_nodes(const std::vector<std::string>& hosts) {
  NodeMap map;
  for (const std::string& host : hosts) {
    const auto known = std::find(map.names.begin(), map.names.end(), host);
    const auto node = static_cast<int>(known - map.names.begin());
    if (known == map.names.end()) map.names.push_back(host);
    map.local_rank.push_back(
        static_cast<int>(std::count(map.node_of.begin(), map.node_of.end(), node)));
    map.node_of.push_back(node);
  }
  return map;
}

}  // namespace shakedown
