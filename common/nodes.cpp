#include "common/nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

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

void check_machines(const std::vector<std::string>& hosts, const std::vector<std::string>& boot_ids,
                    const std::vector<int>& local_ranks, int requested) {
  std::map<std::string, std::size_t> first;  // host -> its first rank
  std::vector<std::string> machines;
  std::string twice;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [known, is_new] = first.emplace(hosts[rank], rank);
    if (is_new)
      machines.push_back(hosts[rank]);
    else if (boot_ids[rank] != boot_ids[known->second])
      throw UsageError(fmt::format(
          "ranks {} and {} are on two machines with the host name {}: give each its own",
          known->second, rank, hosts[rank]));
    else if (local_ranks[rank] == 0)
      twice = hosts[rank];
  }
  if (machines.size() < static_cast<std::size_t>(requested))
    throw InconclusiveError(fmt::format(
        "{} hosts were requested, and {} answered: {}; the names of several lead to one "
        "machine, or containers have one host name",
        requested, machines.size(), fmt::join(machines, ", ")));
  if (!twice.empty())
    throw UsageError(fmt::format(
        "two nodes have the host name {}: give each its own, and name each once", twice));
}

int requested_hosts() {
  const char* text = std::getenv("SHAKEDOWN_HOSTS");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long hosts = std::strtol(text, &end, 10);
  if (*end != '\0' || hosts < 1 || hosts > 1'000'000)
    throw UsageError(
        fmt::format("SHAKEDOWN_HOSTS={}: is not a number of hosts; launch/mpi sets it", text));
  return static_cast<int>(hosts);
}

void declare_pretended_nodes(OptionSet& options, int& value) {
  options.heading("");
  options.add("--pretend-nodes", value, "treat the ranks as this many nodes").at_least(1);
}

}  // namespace shakedown
