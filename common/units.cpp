#include "common/units.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace shakedown {
namespace {

void add(judge::Subject& subject, const Unit& unit) {
  subject.ranks.push_back(unit.rank);
  subject.hosts.push_back(unit.host);
  if (unit.uuid.empty()) return;
  subject.uuids.push_back(unit.uuid);
  subject.serials.push_back(unit.gpu.serial);
}

judge::Observation about(const std::string& metric, const std::string& unit, Scope scope,
                         const std::string& name, const Unit& first) {
  judge::Observation observation;
  observation.metric = metric;
  observation.unit = unit;
  observation.of.scope = scope;
  observation.of.name = name;
  observation.backend = first.uuid.empty() ? "cpu" : "gpu";
  observation.board = first.board;
  observation.pci_device_id = first.gpu.pci_device_id;
  observation.compute_capability = first.compute_capability;
  observation.seen.power_limit_w = first.gpu.power_limit_w;
  return observation;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
double number_of(const Json& value) { return value.is_number() ? value.get<double>() : kUnknown; }

}  // namespace

std::vector<Unit> units_of(const MpiSession& session, const Backend& backend) {
  const DeviceIdentity device = backend.device->identity();
  GpuDescription gpu;
  if (!device.uuid.empty())
    if (const auto nvml = Nvml::open()) gpu = nvml->describe(device.uuid);
  const Json mine{
      device.uuid,         device.model,      device.compute_capability,    device.compute_threads,
      gpu.serial,          gpu.pci_device_id, number(gpu.memory_clock_mhz), number(gpu.memory_bits),
      gpu.pcie_generation, gpu.pcie_width,    number(gpu.power_limit_w)};
  std::vector<Unit> units;
  for (const std::string& text : session.all_gather(json_text(mine))) {
    const Json of_rank = Json::parse(text);
    Unit unit;
    unit.rank = static_cast<int>(units.size());
    unit.host = session.hosts()[units.size()];
    unit.uuid = of_rank[0].get<std::string>();
    unit.board = of_rank[1].get<std::string>();
    unit.compute_capability = of_rank[2].get<std::string>();
    unit.multiprocessors = unit.uuid.empty() ? 0 : of_rank[3].get<int>();
    unit.gpu = {of_rank[4].get<std::string>(), of_rank[5].get<std::string>(), number_of(of_rank[6]),
                number_of(of_rank[7]),         of_rank[8].get<int>(),         of_rank[9].get<int>(),
                number_of(of_rank[10])};
    units.push_back(std::move(unit));
  }
  return units;
}

judge::Observation observed(const std::string& metric, const std::string& unit, const Unit& of) {
  const bool gpu = !of.uuid.empty();
  judge::Observation observation = about(metric, unit, gpu ? Scope::gpu : Scope::rank,
                                         gpu ? of.uuid : std::to_string(of.rank), of);
  add(observation.of, of);
  return observation;
}

judge::Observation observed(const std::string& metric, const std::string& unit, const Unit& from,
                            const Unit& to, bool both_ways) {
  judge::Observation observation =
      about(metric, unit, Scope::link,
            fmt::format("{}{}{}", from.rank, both_ways ? "<->" : "->", to.rank), from);
  add(observation.of, from);
  add(observation.of, to);
  return observation;
}

judge::Observation observed(const std::string& metric, const std::string& unit,
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
  judge::Observation observation = about(
      metric, unit, names.size() == 1 ? Scope::node : Scope::group,
      fmt::format("{}", fmt::join(names, ",")), units[static_cast<std::size_t>(ranks.front())]);
  for (const int rank : ranks) add(observation.of, units[static_cast<std::size_t>(rank)]);
  observation.conditions = {{"transport", transport.transport()},
                            {"world_size", std::to_string(ranks.size())},
                            {"ranks_per_node", std::to_string(most)}};
  observation.versions = versions_of(BackendKind::gpu, {transport.transport()});
  return observation;
}

namespace {

/// Cards whose NVLinks are bridges that somebody plugs in; all other boards have them on board.
bool is_bridged(const std::string& board) {
  constexpr std::array kCards{"PCI", "NVL", "RTX", "Quadro", "TITAN", "GeForce", "A40", "A30"};
  return std::any_of(kCards.begin(), kCards.end(),
                     [&](const char* card) { return board.find(card) != std::string::npos; });
}

Json json_of(const PathEnd& end) {
  const NvlinkWires& w = end.wires;
  return {w.bus_id,
          w.fabric,
          w.clique,
          w.links,
          w.to_switch,
          w.gpus,
          std::isfinite(w.link_gbs) ? Json(w.link_gbs) : Json(),
          end.node};
}

PathEnd end_of(const Json& json) {
  return {{json[0].get<std::string>(), json[1].get<bool>(), json[2].get<std::string>(),
           json[3].get<int>(), json[4].get<int>(), json[5].get<std::vector<std::string>>(),
           json[6].is_number() ? json[6].get<double>() : kUnknown},
          json[7].get<std::vector<Between>>()};
}

}  // namespace

Paths::Paths(NodeMap nodes, std::vector<Unit> units, std::vector<PathEnd> ends)
    : nodes_(std::move(nodes)), units_(std::move(units)), ends_(std::move(ends)) {}

Path Paths::between(int rank, int other) const {
  const auto a = static_cast<std::size_t>(rank);
  const auto b = static_cast<std::size_t>(other);
  const bool same_node = nodes_.node_of[a] == nodes_.node_of[b];
  const bool same_rail = nodes_.local_rank[a] == nodes_.local_rank[b];
  const NvlinkWires& mine = ends_[a].wires;
  const NvlinkWires& its = ends_[b].wires;
  const bool same_fabric = mine.fabric && its.fabric && mine.clique == its.clique;
  const auto wires = [](int links, double link_gbs) {
    return links > 0 ? links * link_gbs : kUnknown;
  };
  const auto by_switch = [&](const std::string& clique) {
    return Path{"nvswitch", clique,
                std::fmin(wires(mine.links, mine.link_gbs), wires(its.links, its.link_gbs))};
  };
  if (!same_node) {
    if (same_fabric && !mine.clique.empty()) return by_switch(mine.clique);
    return {same_rail ? "network_rail" : "network", "", kUnknown};
  }
  if (units_[a].uuid.empty()) return {"host", "", kUnknown};
  const auto place = static_cast<std::size_t>(nodes_.local_rank[b]);
  const Between between = place < ends_[a].node.size() ? ends_[a].node[place] : Between::unknown;
  const bool switched = mine.to_switch > 0 && its.to_switch > 0;
  if (same_fabric && (between == Between::nvlink || between == Between::unknown))
    return by_switch(mine.clique);
  const auto direct = static_cast<int>(std::count(mine.gpus.begin(), mine.gpus.end(), its.bus_id));
  switch (between) {
    case Between::nvlink:
      if (switched) return by_switch(mine.clique);
      return {is_bridged(units_[a].board) ? "nvlink_bridge" : "nvlink", "",
              wires(direct, mine.link_gbs)};
    case Between::pcie_switch: return {"pcie_switch", "", kUnknown};
    case Between::host_bridge: return {"host_bridge", "", kUnknown};
    case Between::socket: return {"socket", "", kUnknown};
    default: return {"unknown", "", kUnknown};
  }
}

Paths paths_of(const MpiSession& session, const NodeMap& nodes, const std::vector<Unit>& units) {
  const auto rank = static_cast<std::size_t>(session.rank());
  PathEnd mine;
  const auto nvml = units[rank].uuid.empty() ? nullptr : Nvml::open();
  if (nvml) {
    mine.wires = nvml->nvlink_wires(units[rank].uuid);
    for (std::size_t other = 0; other < units.size(); ++other)
      if (nodes.node_of[other] == nodes.node_of[rank])  // in the order of local ranks
        mine.node.push_back(nvml->between(units[rank].uuid, units[other].uuid));
  }
  std::vector<PathEnd> ends;
  for (const std::string& text : session.all_gather(json_text(json_of(mine))))
    ends.push_back(end_of(Json::parse(text)));
  return {nodes, units, std::move(ends)};
}

}  // namespace shakedown
