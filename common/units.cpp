#include "common/units.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

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

judge::Observation observed(const std::string& metric, const std::string& unit, Scope scope,
                            const std::string& name, const std::vector<Unit>& units,
                            const std::vector<int>& ranks) {
  judge::Observation observation =
      about(metric, unit, scope, name, units[static_cast<std::size_t>(ranks.front())]);
  for (const int rank : ranks) add(observation.of, units[static_cast<std::size_t>(rank)]);
  return observation;
}

}  // namespace shakedown
