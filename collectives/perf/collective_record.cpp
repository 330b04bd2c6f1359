#include "collectives/perf/collective_record.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "collectives/group_observation.hpp"
#include "collectives/perf/waiting.hpp"
#include "common/nodes.hpp"

namespace shakedown::collectives {
namespace {

// From here on a collective shows its links' bandwidth: below, its time varies with other work.
constexpr std::size_t kBandwidthBytes = std::size_t{16} << 20;
constexpr std::size_t kBandwidthBytesOnCpu = 65537;

/// How a rate was measured, next to the transport and the ranks.
constexpr const char* kRateConditions[] = {
    "dtype",       "bytes",        "in_place",  "reduction", "root",    "mpi_algorithm",
    "launch_mode", "registration", "aggregate", "blocking",  "average", "ctas"};

const char* launch_mode(const PerfOptions& options) {
  return options.graph > 0 ? "graph" : options.one_by_one != 0 ? "one_by_one" : "back_to_back";
}

}  // namespace

Json conditions_of(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                   const Backend& backend, const MpiSession& session) {
  const NodeMap nodes = map_nodes(session.hosts());
  const auto models = session.all_gather(backend.device->identity().model);
  const std::set<std::string> devices(models.begin(), models.end());
  Json conditions{{"backend", name_of(backend.kind)},
                  {"device", fmt::format("{}", fmt::join(devices, ", "))},
                  {"transport", communicator.transport()},
                  {"launch_mode", launch_mode(options)},
                  {"world_size", communicator.size()},
                  {"nodes", nodes.names.size()},
                  {"ranks_per_node", nodes.ranks_per_node()},
                  {"registration", options.registration},
                  {"aggregate", plan.bench.aggregate},
                  {"blocking", options.blocking},
                  {"average", options.average},
                  {"ctas", options.backend.ctas},
                  {"iterations_per_sample", plan.bench.iterations}};
  if (is_mpi(communicator)) conditions["mpi_algorithm"] = name_of(backend.mpi_algorithm);
  return conditions;
}

Json record_of(const Trial& trial, const Measurement& measured, const Figures& figures,
               const MpiSession& session) {
  const Summary& s = figures.spread;
  const Interval interval = bootstrap_median(figures.samples);
  // algbw and busbw are the table's, of nccl-tests' time; one by one, samples are iterations
  Json fields{{"operation", trial.operation->name},
              {"dtype", name_of(trial.type)},
              {"reduction", trial.operation->reduces ? name_of(trial.reduction) : "none"},
              {"root", trial.root},
              {"bytes", trial.bytes()},
              {"count", trial.counts.call},
              {"in_place", trial.in_place},
              {"time_us_p50", s.median},
              {"time_us_low", interval.low},
              {"time_us_high", interval.high},
              {"time_us_p95", s.p95},
              {"time_us_p99", s.p99},
              {"time_us_max", s.max},
              {"time_us_cv", s.cv},
              {"event_us_p50", median_of(measured.event_us)},
              {"enqueue_us_p50", figures.cputime_us},
              {"algbw_gbs", figures.algbw_gbs},
              {"busbw_gbs", figures.busbw_gbs},
              {"iterations", measured.iterations},
              {"iterations_checked", measured.iterations_checked},
              {"wrong_elements", figures.wrong ? Json(*figures.wrong) : Json(nullptr)},
              {"samples_us", figures.samples}};
  if (measured.first_wrong) fields["first_wrong"] = describe(*measured.first_wrong, session);
  if (!measured.iteration_us.empty() && trial.operation->ends_together) {
    const WaitingTimes waiting = analyse_waiting(measured.iteration_us);
    fields["transfer_us_p50"] = waiting.transfer_us;
    fields["wait_us"] = waiting.wait_us;
    fields["wait_for_straggler_us"] = waiting.wait_for_straggler_us;
    if (waiting.straggler >= 0) fields["straggler_rank"] = waiting.straggler;
  }
  return fields;
}

std::optional<judge::Observation> observation_of(const Json& fields, const Figures& figures,
                                                 const Communicator& communicator,
                                                 const NodeMap& nodes,
                                                 const std::vector<Unit>& units) {
  if (figures.busbw_gbs <= 0 || fields.contains("algorithm") || fields.contains("transports"))
    return std::nullopt;
  const bool cpu = units.front().uuid.empty();
  const bool small =
      fields.at("bytes").get<std::size_t>() < (cpu ? kBandwidthBytesOnCpu : kBandwidthBytes);
  std::vector<int> ranks(units.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  judge::Observation observation =
      observed_group(fmt::format("collective/{}/{}", fields.at("operation").get<std::string>(),
                                 small ? "latency" : "busbw"),
                     small ? "us" : "GB/s", communicator, nodes, units, ranks);
  for (const char* key : kRateConditions)
    if (const auto value = fields.find(key); value != fields.end())
      observation.conditions[key] =
          value->is_string() ? value->get<std::string>() : json_text(*value);
  const char* nvls = std::getenv("NCCL_NVLS_ENABLE");
  if (!is_mpi(communicator) && nvls != nullptr && std::string(nvls) == "0")
    observation.conditions["nvls"] = "off";
  for (const double us : figures.samples)
    observation.samples.push_back(small ? us : figures.busbw_gbs * figures.spread.median / us);
  observation.check = !figures.wrong       ? judge::Check::unchecked
                      : *figures.wrong > 0 ? judge::Check::wrong
                                           : judge::Check::verified;
  return observation;
}

std::string name_of_row(const Json& c) {
  return fmt::format("{} {} {} {} {}", c.at("operation").get<std::string>(),
                     c.at("dtype").get<std::string>(), c.at("reduction").get<std::string>(),
                     readable_bytes(c.at("bytes").get<double>()),
                     c.at("in_place").get<bool>() ? "in place" : "out of place");
}

std::vector<std::string> csv_columns() {
  return {"operation",   "dtype",       "reduction",          "root",           "bytes",
          "count",       "in_place",    "time_us_p50",        "time_us_low",    "time_us_high",
          "time_us_p95", "time_us_p99", "time_us_max",        "time_us_cv",     "algbw_gbs",
          "busbw_gbs",   "iterations",  "iterations_checked", "wrong_elements", "backend",
          "device",      "transport",   "launch_mode",        "world_size",     "nodes"};
}

std::string describe(const WrongElement& w, const MpiSession& session) {
  return fmt::format("rank {} on {}, iteration {}, element {}: expected {:#x}, found {:#x}", w.rank,
                     session.hosts()[static_cast<std::size_t>(w.rank)], w.iteration, w.index,
                     w.expected, w.found);
}

}  // namespace shakedown::collectives
