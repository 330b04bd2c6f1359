#include "launch/node/health/facts/node_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>

#include "common/mpi_session.hpp"
#include "common/placement.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
namespace {

HostGpus gpus_in(const std::string& file) {
  std::ifstream in(file);
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded())
    throw UsageError(fmt::format("--readings {}: not a JSON file of readings", file));
  return read_as<HostGpus>(json);
}

/// What a rank adds to the report of its node, which another rank reads.
Json report_of_rank(const ReportSource& source) {
  std::vector<Fact> allowed;
  for (const Fact& fact : all_facts())
    if (std::string(fact.name) == kCoresAllowed) allowed.push_back(fact);
  return {{"our_pids", {getpid()}},
          {"facts", read_facts(facts_here(source.root), source.facts_s, allowed)}};
}

/// The cores of the rank that has the fewest are those of the node's report.
void add_rank(NodeReport& report, const Json& rank) {
  for (const Json& pid : rank.at("our_pids")) report.our_pids.push_back(pid);
  const Json& facts = rank.at("facts");
  if (facts.contains(kCoresAllowed) && report.facts.contains(kCoresAllowed) &&
      facts.at(kCoresAllowed).at("cores") < report.facts.at(kCoresAllowed).at("cores"))
    report.facts[kCoresAllowed] = facts.at(kCoresAllowed);
}

}  // namespace

NodeReport read_node(const std::string& host, const ReportSource& source,
                     const std::function<void(const Json&)>& on_facts) {
  auto facts = std::async(std::launch::async, [&] {
    const Json read =
        source.facts ? read_facts(facts_here(source.root), source.facts_s) : Json::object();
    on_facts(read);
    return read;
  });
  NodeReport report;
  const auto start = std::chrono::steady_clock::now();
  report.host = host;
  report.gpus =
      source.readings.empty()
          ? GpuReader(source.call_s, nvml::library_name(), source.whole_s).read(source.inforom)
          : gpus_in(source.readings);
  report.reading_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  report.facts = facts.get();
  report.our_pids = {getpid()};
  return report;
}

std::vector<NodeReport> gather_reports(const MpiSession& session, const ReportSource& source) {
  const bool reads = session.local_rank() == 0;
  const Json mine = reads ? Json(read_node(session.host(), source)) : report_of_rank(source);
  const NodeMap nodes = map_nodes(session.hosts());
  std::vector<NodeReport> reports(nodes.names.size());
  const auto texts = session.all_gather(json_text(mine));
  const auto each = [&](auto&& use) {
    for (std::size_t rank = 0; rank < texts.size(); ++rank)
      use(reports[static_cast<std::size_t>(nodes.node_of[rank])], Json::parse(texts[rank]));
  };
  each([](NodeReport& report, const Json& json) {
    if (json.contains("gpus")) report = read_as<NodeReport>(json);
  });
  each([](NodeReport& report, const Json& json) {
    if (!json.contains("gpus")) add_rank(report, json);
  });
  return reports;
}

void read_clocks(const MpiSession& session, std::vector<NodeReport>& reports) {
  constexpr int kRounds = 5;  // a rank that was late at one is not at most of them
  const NodeMap nodes = map_nodes(session.hosts());
  std::vector<std::vector<double>> ahead(reports.size());  // of the first node
  double first_s = 0;
  for (int round = 0; round < kRounds; ++round) {
    session.barrier();
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    const auto clocks = session.all_gather(now.count());
    first_s = clocks.front();
    for (std::size_t rank = 0; rank < clocks.size(); ++rank)
      if (nodes.local_rank[rank] == 0)
        ahead[static_cast<std::size_t>(nodes.node_of[rank])].push_back(clocks[rank] - first_s);
  }
  for (std::size_t node = 0; node < reports.size(); ++node)
    reports[node].clock_s = first_s + median_of(ahead[node]);
}

}  // namespace shakedown::node
