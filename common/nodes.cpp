#include "common/nodes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "common/options.hpp"

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

NodeMap map_nodes(const std::vector<std::string>& hosts, int pretended) {
  if (pretended == 0) return map_nodes(hosts);
  const auto ranks = static_cast<int>(hosts.size());
  if (pretended > ranks)
    throw UsageError(fmt::format("--pretend-nodes {}: this job has only {} rank{}", pretended,
                                 ranks, ranks == 1 ? "" : "s"));
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank)
    names.push_back(fmt::format("node{}", rank * pretended / ranks));
  return map_nodes(names);
}

void declare_pretended_nodes(OptionSet& options, int& value) {
  options.heading("");
  options.add("--pretend-nodes", value, "treat the ranks as this many nodes").at_least(1);
}

}  // namespace shakedown
