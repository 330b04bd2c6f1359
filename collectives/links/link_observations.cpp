#include "collectives/links/link_observations.hpp"

#include <cmath>
#include <utility>

#include "collectives/group_observation.hpp"

namespace shakedown::collectives {

LinkObserver::LinkObserver(const NodeMap& nodes, std::vector<Unit> units, const Paths& paths,
                           const Communicator& world)
    : nodes_(nodes),
      units_(std::move(units)),
      paths_(paths),
      world_(world),
      versions_(versions_of(world)) {
  for (Unit& unit : units_) unit.host = nodes.name_of(unit.rank);
}

judge::Observation LinkObserver::of(const LinkFigure& figure) const {
  const bool latency = figure.metric == "link/latency";
  judge::Observation observation = observed(
      figure.metric, latency ? "us" : "GB/s", units_[static_cast<std::size_t>(figure.from)],
      units_[static_cast<std::size_t>(figure.to)], figure.both_ways);
  observation.conditions = figure.conditions;
  const Path path = paths_.between(figure.from, figure.to);
  observation.path_class = path.path_class;
  if (!path.clique.empty()) observation.conditions["clique"] = path.clique;
  if (!latency && std::isfinite(path.peak_gbs))
    observation.peak = (figure.both_ways ? 2 : 1) * path.peak_gbs;
  if (figure.conditions.contains("transport")) observation.versions = versions_;
  observation.look = figure.look;
  observation.samples = figure.samples;
  observation.check = figure.wrong > 0 ? judge::Check::wrong : judge::Check::verified;
  observation.taken = figure.taken;
  return observation;
}

judge::Observation LinkObserver::of(const Split& split, std::size_t bytes) const {
  judge::Observation observation =
      observed_group("part/" + split.scope + "/busbw", "GB/s", world_, nodes_, units_, split.ranks);
  if (split.scope == "rail") {
    observation.of.scope = Scope::rail;
    observation.of.name = split.name;
  }
  observation.conditions["operation"] = "all_reduce";
  observation.conditions["bytes"] = std::to_string(bytes);
  observation.samples = split.samples;
  observation.check = split.wrong_elements > 0 ? judge::Check::wrong : judge::Check::verified;
  return observation;
}

}  // namespace shakedown::collectives
