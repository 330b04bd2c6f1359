#include "collectives/links/measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/peer_copies.hpp"
#include "collectives/links/splits.hpp"
#include "common/judging.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"

namespace shakedown::collectives {
namespace {

struct Results {
  std::vector<Link> links;
  std::vector<judge::Observation> copies;  // between GPUs of a node
  std::vector<Split> splits;
  std::vector<Verdict> verdicts;     // where data arrived wrong, and of pairs of nodes
  std::string visits;                // their table
  std::vector<std::string> remarks;  // for people
};

Json record_of(const Split& split, const MessageSettings& settings) {
  const Json fields{{"scope", split.scope},
                    {"name", split.name},
                    {"operation", "all_reduce"},
                    {"bytes", 8 * settings.words},
                    {"busbw_gbs", split.busbw_gbs},
                    {"iterations", settings.iterations},
                    {"time_us_p50", split.time_us_p50},
                    {"wrong_elements", split.wrong_elements},
                    {"world_size", split.world_size()}};
  return split.wrong_elements > 0 ? merged(fields, fields_of(split.diagnosis)) : fields;
}

// Links between nodes by sampled pairs: what their visits come to. Rates of the CPU backend only
// warn.

constexpr std::uint64_t kPairsSeed = 1;  // the same pairs in each run, so that two can be compared

/// Of the three links of each pair of a round, as LinkMeter has them: one way, the other, both.
std::vector<judge::Visit> visits_of(const LinkRound& round) {
  std::vector<judge::Visit> visits;
  for (std::size_t i = 0; i + 2 < round.links.size(); i += 3) {
    const Link *forward = &round.links[i], *backward = forward + 1, *both = forward + 2;
    visits.push_back(
        {{forward->from, forward->to},
         std::min(forward->bandwidth_gbs, backward->bandwidth_gbs),
         forward->wrong_elements + backward->wrong_elements + both->wrong_elements > 0});
  }
  return visits;
}

Verdict verdict_of(const judge::PairFinding& finding, const NodeMap& nodes,
                   const std::vector<Unit>& units, BackendKind backend) {
  std::set<std::string> hosts;
  for (const int rank : finding.ranks) hosts.insert(nodes.name_of(rank));
  Verdict verdict;
  verdict.outcome = finding.proved && backend == BackendKind::gpu ? Outcome::fail : Outcome::warn;
  verdict.cause = finding.cause;
  verdict.hosts = {hosts.begin(), hosts.end()};
  const int rank = finding.ranks.front();
  if (finding.kind == judge::PairFinding::path) {
    verdict.scope = Scope::link;
    verdict.name = fmt::format("{}<->{}", rank, finding.ranks[1]);
    verdict.check = "pair-path";
    verdict.class_ = Class::infrastructure;
    verdict.action = finding.proved ? "inspect the switches and cables between the two nodes"
                                    : "measure again: link_matrix --pairs all";
    return verdict;
  }
  const bool port =
      finding.ranks.size() == 1 && nodes.ranks_per_node()[static_cast<std::size_t>(
                                       nodes.node_of[static_cast<std::size_t>(rank)])] > 1;
  const std::string& uuid = units[static_cast<std::size_t>(rank)].uuid;
  verdict.scope = !port ? Scope::node : uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = !port ? nodes.name_of(rank) : uuid.empty() ? std::to_string(rank) : uuid;
  if (finding.kind == judge::PairFinding::slow) {
    verdict.check = "pair-port";
    verdict.class_ = Class::infrastructure;
    verdict.action = "inspect the adapter, cable and switch port of this node";
  } else {
    verdict.check = "pair-intermittent";
    verdict.action = "drain the node; run bin/node_check and bin/soak on it";
  }
  return verdict;
}

/// A rank that no other node has a partner for, or that had a bye in each round.
Verdict not_measured(const Unit& unit, BackendKind backend) {
  Verdict verdict;
  verdict.scope = unit.uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = unit.uuid.empty() ? std::to_string(unit.rank) : unit.uuid;
  verdict.outcome = backend == BackendKind::gpu ? Outcome::inconclusive : Outcome::unknown;
  verdict.cause = fmt::format("rank {} met no rank of another node", unit.rank);
  verdict.action =
      "start the same number of ranks on each node, or measure more rounds: --pairs all";
  verdict.check = "pair-port";
  verdict.hosts = {unit.host};
  return verdict;
}

/// Of a port, its visits as samples.
judge::Observation observation_of_port(const Unit& unit, const std::vector<double>& gbs,
                                       const Communicator& world, std::size_t words) {
  judge::Observation observation = observed("port/one_way", "GB/s", unit);
  observation.conditions = {{"bytes", std::to_string(8 * words)}, {"transport", world.transport()}};
  observation.samples = gbs;
  return observation;
}

/// By rail, its ports' medians.
using Ports = std::map<int, std::vector<std::pair<double, int>>>;

std::string table_of(const Ports& of_rail, const judge::PairSearch& search, int rounds,
                     const NodeMap& nodes) {
  const int others = static_cast<int>(nodes.names.size()) - 1;
  const int met = search.sampled() - search.shifted();
  const std::string unseen =
      met < others ? fmt::format(
                         "; each node met {} of {} others at most, and a bad path between "
                         "two that did not meet is not seen (--pairs all)",
                         met, others)
                   : "";
  const std::vector<Column> columns{{"", "rail", 4},       {"", "ports", 6},
                                    {"median", "GB/s", 8}, {"slowest", "GB/s", 8},
                                    {"of", "rank", 6},     {"", "on", 16}};
  std::string text = fmt::format(
      "\nbetween nodes, one way: {} of pairs of nodes, {} from rail to rail, {} to "
      "confirm{}\n{}",
      counted(met, "round"), search.shifted(), rounds - search.sampled(), unseen, heading(columns));
  for (const auto& [rail, ports] : of_rail) {
    std::vector<double> medians;
    for (const auto& [median, rank] : ports) medians.push_back(median);
    const auto& [slowest, rank] = *std::min_element(ports.begin(), ports.end());
    text += row(columns, {std::to_string(rail), std::to_string(ports.size()),
                          fmt::format("{:.4g}", median_of(medians)), fmt::format("{:.4g}", slowest),
                          std::to_string(rank), nodes.name_of(rank)});
  }
  return text;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Collective; the results are the same on every rank. What can be judged is given to `judging`.
class LinkMeasurement {
 public:
  /// `rounds` of the nodes' visits are sampled; 0: every pair is measured.
  LinkMeasurement(const NodeMap& nodes, Backend& backend, MpiSession& session,
                  LinkMessages& messages, Record& record, Judging& judging, int rounds)
      : nodes_(nodes),
        backend_(backend),
        session_(session),
        messages_(messages),
        record_(record),
        judging_(judging),
        rounds_(rounds),
        units_(units_of(session, backend)),
        paths_(paths_of(session, nodes, units_)),
        observer_(units_, paths_),
        meter_(backend, session, nodes, observer_, messages, record, rounds > 0) {
    for (Unit& unit : units_) unit.host = nodes.name_of(unit.rank);
  }

  /// The links of every pair, concurrently and, where `alone`, alone too; copies between the GPUs
  /// of a node; on several nodes the splits. Where rounds are sampled, pairs of nodes in those
  /// alone, and none alone.
  Results measure(bool alone) {
    Results results;
    const auto within =
        rounds_ > 0 ? judge::rounds_within_nodes(nodes_) : round_robin(session_.world_size());
    measure_messages(within, false, results);
    if (alone && rounds_ == 0) measure_messages(within, true, results);
    if (rounds_ > 0) measure_between_nodes(results);
    for (const Verdict& wrong : meter_.corruptions()) add(wrong, results);
    measure_copies(results);
    if (nodes_.names.size() == 1) return results;
    std::vector<Verdict> wrong;
    results.splits = measure_splits(nodes_, backend_, session_, messages_, wrong);
    for (const Verdict& each : wrong) add(each, results);
    for (const Split& split : results.splits) {
      record_.write("split", merged(identity_of(backend_), record_of(split, messages_.settings())));
      if (split.scope != "without_node") judging_.add(observation_of(split), record_);
    }
    return results;
  }

 private:
  void measure_messages(const std::vector<std::vector<RankPair>>& rounds, bool alone,
                        Results& results) {
    Progress progress(alone ? "pairs alone" : "pairs at once", static_cast<long>(rounds.size()),
                      "rounds", session_.is_root());
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      const LinkRound measured = meter_.measure(rounds[round], alone);
      append(results.links, measured.links);
      judge_all(measured.observations);
      progress.update(static_cast<long>(round) + 1);
    }
  }

  /// Recorded at once: a run that is stopped before its end has seen it.
  void add(const Verdict& verdict, Results& results) {
    record_.write("verdict", merged(identity_of(backend_), shakedown::record_of(verdict)));
    results.verdicts.push_back(verdict);
  }

  /// The record has tables where it would have a line for each of thousands of ranks' pairs.
  void judge_all(const std::vector<judge::Observation>& all, std::optional<int> first_id = {}) {
    if (rounds_ > 0) return judging_.add_table(all, record_, first_id);
    for (const judge::Observation& each : all)
      judging_.add(each, record_, first_id ? std::optional((*first_id)++) : std::nullopt);
  }

  void measure_between_nodes(Results& results) {
    judge::PairSearch search(nodes_, rounds_, kPairsSeed);
    std::vector<std::vector<double>> gbs(units_.size());  // by rank
    Progress progress("pairs of nodes", search.planned(), "rounds", session_.is_root());
    int round = 0;
    for (auto pairs = search.next(); !pairs.empty(); pairs = search.next()) {
      const bool sampled = round < search.sampled() - search.shifted();
      const std::vector<judge::Visit> visits = visits_of(meter_.measure(pairs, false));
      for (const judge::Visit& visit : visits)
        for (const int rank : {visit.pair.first, visit.pair.second})
          if (sampled) gbs[static_cast<std::size_t>(rank)].push_back(visit.gbs);
      search.add(visits);
      const int more = ++round - search.planned();
      progress.update(round - std::max(more, 0),
                      more > 0 ? fmt::format("{} more of suspects", more) : "");
    }

    for (const judge::PairFinding& finding : search.findings())
      add(verdict_of(finding, nodes_, units_, backend_.kind), results);
    Ports of_rail;
    for (std::size_t rank = 0; rank < units_.size(); ++rank) {
      if (gbs[rank].empty()) {
        add(not_measured(units_[rank], backend_.kind), results);
        continue;
      }
      judging_.add(
          observation_of_port(units_[rank], gbs[rank], *backend_.world, messages_.settings().words),
          record_);
      of_rail[nodes_.local_rank[rank]].push_back({median_of(gbs[rank]), static_cast<int>(rank)});
    }
    results.visits = table_of(of_rail, search, round, nodes_);
  }

  void measure_copies(Results& results) {
    const std::vector<int> per_node = nodes_.ranks_per_node();
    const int most = *std::max_element(per_node.begin(), per_node.end());
    if (backend_.kind != BackendKind::gpu || most < 2) return;
    PeerCopies copies(backend_, session_, nodes_, observer_, messages_,
                      [&](const Verdict& wrong) { add(wrong, results); });
    results.copies = copies.measure();
    judge_all(results.copies, 0);
    measure_slow_ones_again(copies, results);
    append(results.remarks, copies.remarks());
  }

  /// What seemed slow may have been what else the machine did: the judge says who, and how often.
  void measure_slow_ones_again(PeerCopies& copies, Results& results) {
    for (auto slow = judging_.slow(); !slow.empty(); slow = judging_.slow()) {
      results.remarks.push_back(
          fmt::format("measured again, as it seemed slow: {} figures", slow.size()));
      for (const int i : slow) {
        judge::Observation& copy = results.copies[static_cast<std::size_t>(i)];
        const int look = copy.look + 1;
        copy = copies.measure_again(copy);
        copy.look = look;
        judging_.add(copy, record_, i);
      }
    }
  }

  judge::Observation observation_of(const Split& split) const {
    judge::Observation observation = observed("part/" + split.scope + "/busbw", "GB/s",
                                              *backend_.world, nodes_, units_, split.ranks);
    if (split.scope == "rail") {
      observation.of.scope = Scope::rail;
      observation.of.name = split.name;
    }
    observation.conditions["operation"] = "all_reduce";
    observation.conditions["bytes"] = std::to_string(8 * messages_.settings().words);
    observation.samples = split.samples;
    if (split.wrong_elements > 0) observation.check = judge::Check::wrong;
    return observation;
  }

  const NodeMap& nodes_;
  Backend& backend_;
  MpiSession& session_;
  LinkMessages& messages_;
  Record& record_;
  Judging& judging_;
  int rounds_;
  std::vector<Unit> units_;  // under the nodes' names
  Paths paths_;
  LinkObserver observer_;
  LinkMeter meter_;
};

// The tables: matrices, and the splits.

constexpr int kMostRanksInAMatrix = 16;

/// One figure of every pair.
struct Table {
  std::string name;  // "latency us, alone"
  bool symmetric = false;
  struct Cell {
    int from, to;
    double value;
  };
  std::vector<Cell> cells;
};

/// Without those of which no link was measured.
std::vector<Table> tables_of(const std::vector<Link>& links) {
  std::vector<Table> tables;
  for (const char* figure : {"unidirectional GB/s", "bidirectional GB/s", "latency us"})
    for (const bool only : {false, true}) {
      const bool latency = figure[0] == 'l';
      const bool both_ways = figure[0] == 'b';
      Table& table = tables.emplace_back();
      table.name = fmt::format("{}, {}", figure, concurrency_of(only));
      table.symmetric = latency || both_ways;
      for (const Link& link : links)
        if (link.alone == only && link.bidirectional == both_ways &&
            (!latency || link.from < link.to))
          table.cells.push_back(
              {link.from, link.to, latency ? link.latency_us : link.bandwidth_gbs});
      if (table.cells.empty()) tables.pop_back();
    }
  return tables;
}

/// "link/copy_engine/one_way" as "copy engine one way".
std::string words_of(std::string metric) {
  metric.erase(0, metric.find('/') + 1);
  std::replace_if(
      metric.begin(), metric.end(), [](char c) { return c == '/' || c == '_'; }, ' ');
  return metric;
}

std::vector<Table> tables_of(const std::vector<judge::Observation>& copies) {
  std::map<std::string, Table> tables;
  for (const judge::Observation& copy : copies) {
    if (copy.samples.empty()) continue;
    Table& table = tables[copy.metric];
    table.name = words_of(copy.metric) + " GB/s";
    table.symmetric = copy.metric.ends_with("/both_ways");
    table.cells.push_back({copy.of.ranks[0], copy.of.ranks[1], median_of(copy.samples)});
  }
  std::vector<Table> found;
  for (const auto& [metric, table] : tables) found.push_back(table);
  return found;
}

std::string matrix(const Table& table, std::size_t ranks) {
  std::vector<std::string> cells(ranks * ranks, "-");
  for (const Table::Cell& cell : table.cells) {
    const auto from = static_cast<std::size_t>(cell.from);
    const auto to = static_cast<std::size_t>(cell.to);
    cells[from * ranks + to] = fmt::format("{:.4g}", cell.value);
    if (table.symmetric) cells[to * ranks + from] = cells[from * ranks + to];
  }
  std::string text = fmt::format("\n{}\n{:>7}", table.name, "from\\to");
  for (std::size_t to = 0; to < ranks; ++to) text += fmt::format(" {:>9}", to);
  for (std::size_t from = 0; from < ranks; ++from) {
    text += fmt::format("\n{:>7}", from);
    for (std::size_t to = 0; to < ranks; ++to)
      text += fmt::format(" {:>9}", cells[from * ranks + to]);
  }
  return text + "\n";
}

std::string headline(const MessageSettings& settings, const Backend& backend,
                     const NodeMap& nodes) {
  const std::size_t count = nodes.names.size();
  const std::string messages = fmt::format(
      "link_matrix: messages of {}, {} timed after {} untimed; round trips of 8 bytes, {} timed",
      readable_bytes(8.0 * static_cast<double>(settings.words)), settings.iterations,
      settings.warmup, settings.latency_iterations);
  const std::string ranks = fmt::format(
      "on {} ranks of {} node{}, {} ({}), {}", backend.world->size(), count, count == 1 ? "" : "s",
      backend.remark, backend.world->transport(), backend.device->identity().model);
  return wrapped(messages, 2) + "\n" + wrapped(ranks, 2);
}

std::string link_tables(const LinkOptions& options, const Results& results, int ranks) {
  if (options.matrix == "off" || (options.matrix == "auto" && ranks > kMostRanksInAMatrix))
    return "";
  std::vector<Table> tables = tables_of(results.links);
  for (Table& table : tables_of(results.copies)) tables.push_back(std::move(table));
  std::string text;
  for (const Table& table : tables) text += matrix(table, static_cast<std::size_t>(ranks));
  return text;
}

std::string split_table(const std::vector<Split>& splits) {
  if (splits.empty()) return "";
  std::string text = "\nall_reduce busbw GB/s      ranks\n";
  for (const Split& split : splits)
    text += fmt::format("{:>12} {:<12} {:>6} {:>9.4g}\n", split.scope, split.name,
                        split.world_size(), split.busbw_gbs);
  return text;
}

/// The bars are on what messages measure.
void set_bars(const LinkOptions& options, const Communicator& world, Judging& judging) {
  if (options.min_bandwidth_gbs > 0)
    for (const std::string by : {"network", world.transport()})
      judging.bar(fmt::format("link/{}/one_way", by), options.min_bandwidth_gbs, {});
  if (options.min_bandwidth_gbs > 0) judging.bar("port/one_way", options.min_bandwidth_gbs, {});
  if (options.max_latency_us > 0) judging.bar("link/latency", {}, options.max_latency_us);
}

ExitCode conclude(const std::vector<Verdict>& verdicts, const Json& identity,
                  const MpiSession& session, Judging& judging, Record& record) {
  for (const Verdict& verdict : verdicts) {
    judging.add(verdict, verdict.hosts);
    say(session, line_of(verdict));
  }
  const judge::Judgement judgement = judging.judgement();
  record_judgement(judgement, record, identity);
  say(session, judge::text_of(judgement));
  return exit_code_of(judgement.job.outcome);
}

}  // namespace

ExitCode measure_links(const LinkOptions& options, Backend& backend, MpiSession& session,
                       Record& record) {
  const int ranks = session.world_size();
  const MessageSettings settings = message_settings(options, backend.kind, ranks);
  const NodeMap nodes = map_nodes(session.hosts(), options.pretend_nodes);
  Judging judging(options.judge, session, "link_matrix");
  set_bars(options, *backend.world, judging);
  say(session, headline(settings, backend, nodes));

  const auto messages = make_messages(backend, session, settings);
  const Results results = LinkMeasurement(nodes, backend, session, *messages, record, judging,
                                          sampled_rounds(options.pairs, nodes))
                              .measure(options.alone);
  say(session, link_tables(options, results, ranks) + results.visits + split_table(results.splits));
  for (const std::string& remark : results.remarks) say(session, remark);
  return conclude(results.verdicts, identity_of(backend), session, judging, record);
}

}  // namespace shakedown::collectives
