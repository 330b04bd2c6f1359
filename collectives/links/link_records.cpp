#include <nlohmann/json.hpp>

#include "collectives/links/link_records.hpp"

namespace shakedown::collectives {

LinkRecords::LinkRecords(Record& record, const std::string& csv, const MessageSettings& settings,
                         const NodeMap& nodes, const Backend& backend)
    : record_(record),
      csv_({"--csv", csv}, {"from", "to", "from_host", "to_host", "direction", "concurrency",
                            "bytes", "bandwidth_gbs", "latency_us", "time_us_p50", "time_us_cv",
                            "iterations", "wrong_elements", "backend", "transport", "world_size"}),
      settings_(settings),
      nodes_(nodes),
      identity_{{"backend", name_of(backend.kind)},
                {"transport", backend.world->transport()},
                {"world_size", backend.world->size()}} {}

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
    const Json line = merged(identity_, fields);
    record_.write("link", line);
    csv_.add(line);
  }
}

void LinkRecords::write(const std::vector<Split>& splits) {
  for (const Split& split : splits)
    record_.write("split", merged(identity_, {{"scope", split.scope},
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
  record_.write("verdict", merged(identity_, record_of(verdict)));
}

}  // namespace shakedown::collectives
