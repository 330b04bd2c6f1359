#include "collectives/links/records.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "collectives/group_observation.hpp"

namespace shakedown::collectives {

Json LinkRecords::identity() const {
  return {{"backend", name_of(backend_.kind)},
          {"transport", backend_.world->transport()},
          {"world_size", backend_.world->size()}};
}

void LinkRecords::write(const std::vector<Link>& links) {
  for (const Link& link : links) {
    Json fields{{"from", link.from},
                {"to", link.to},
                {"from_host", nodes_.name_of(link.from)},
                {"to_host", nodes_.name_of(link.to)},
                {"direction", link.bidirectional ? "bidirectional" : "unidirectional"},
                {"concurrency", concurrency_of(link.alone)},
                {"bytes", 8 * settings_.words},
                {"bandwidth_gbs", link.bandwidth_gbs}};
    if (!link.bidirectional) fields["latency_us"] = link.latency_us;
    fields.update({{"iterations", settings_.iterations},
                   {"time_us_p50", link.time_us_p50},
                   {"time_us_cv", link.time_us_cv},
                   {"wrong_elements", link.wrong_elements}});
    record_.write("link", merged(identity(), fields));
  }
}

void LinkRecords::write(const std::vector<Split>& splits) {
  for (const Split& split : splits)
    record_.write("split", merged(identity(), {{"scope", split.scope},
                                               {"name", split.name},
                                               {"operation", "all_reduce"},
                                               {"bytes", 8 * settings_.words},
                                               {"busbw_gbs", split.busbw_gbs},
                                               {"iterations", settings_.iterations},
                                               {"time_us_p50", split.time_us_p50},
                                               {"wrong_elements", split.wrong_elements},
                                               {"world_size", split.world_size}}));
}

void LinkRecords::write(const Verdict& verdict) {
  record_.write("verdict", merged(identity(), record_of(verdict)));
}

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
