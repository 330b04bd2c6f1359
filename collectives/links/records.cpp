#include "collectives/links/records.hpp"

#include <nlohmann/json.hpp>

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
                                               {"world_size", split.world_size()}}));
}

void LinkRecords::write(const Verdict& verdict) {
  record_.write("verdict", merged(identity(), record_of(verdict)));
}

}  // namespace shakedown::collectives
