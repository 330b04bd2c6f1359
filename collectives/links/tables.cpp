#include "collectives/links/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/statistics.hpp"
#include "common/text_table.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kMostRanksInAMatrix = 16;

/// One figure of every pair.
struct Table {
  std::string name;  // "latency us, alone"
  bool symmetric = false;
  bool higher_is_better = true;
  struct Cell {
    int from, to;
    double value;
  };
  std::vector<Cell> cells;
};

std::vector<Table> tables_of(const std::vector<Link>& links, bool alone) {
  std::vector<Table> tables;
  for (const char* figure : {"unidirectional GB/s", "bidirectional GB/s", "latency us"})
    for (const bool only : {false, true}) {
      if (only && !alone) continue;
      const bool latency = figure[0] == 'l';
      const bool both_ways = figure[0] == 'b';
      Table& table = tables.emplace_back();
      table.name = fmt::format("{}, {}", figure, concurrency_of(only));
      table.symmetric = latency || both_ways;
      table.higher_is_better = !latency;
      for (const Link& link : links)
        if (link.alone == only && link.bidirectional == both_ways &&
            (!latency || link.from < link.to))
          table.cells.push_back(
              {link.from, link.to, latency ? link.latency_us : link.bandwidth_gbs});
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

std::vector<Table> tables_of(const std::vector<LinkFigure>& copies) {
  std::map<std::string, Table> tables;
  for (const LinkFigure& figure : copies) {
    if (figure.samples.empty()) continue;
    Table& table = tables[figure.metric];
    table.name = words_of(figure.metric) + " GB/s";
    table.symmetric = figure.both_ways;
    table.cells.push_back({figure.from, figure.to, median_of(figure.samples)});
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

std::string rank_table(const std::vector<Table>& tables, int ranks) {
  std::string text = "\nof each rank's links: median, worst\n   rank";
  for (const Table& table : tables) text += fmt::format("  {:>26}", table.name);
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("\n{:>7}", rank);
    for (const Table& table : tables) {
      std::vector<double> own;
      for (const Table::Cell& cell : table.cells)
        if (cell.from == rank || cell.to == rank) own.push_back(cell.value);
      if (own.empty()) {
        text += fmt::format("  {:>26}", "-");
        continue;
      }
      const Summary summary = summarize(own);
      text += fmt::format("  {:>13.4g}{:>13.4g}", summary.median,
                          table.higher_is_better ? summary.min : summary.max);
    }
  }
  return text + "\n";
}

}  // namespace

std::string size_remark(int ranks, bool alone) {
  constexpr int kFewRanks = 64;
  constexpr double kLinkBytes = 375;          // of a link's line
  constexpr double kMetricBytes = 700;        // of a figure's
  constexpr double kObservationBytes = 1500;  // on rank 0, which judges them
  if (ranks <= kFewRanks) return "";
  const double pairs = 0.5 * ranks * (ranks - 1);
  const double measured = pairs * (alone ? 2 : 1);  // each direction, both at once; latency
  std::string text =
      fmt::format("{:.0f} pairs of ranks: about {} of record, {} on each rank and {} on rank 0",
                  pairs, readable_bytes(measured * (3 * kLinkBytes + 4 * kMetricBytes)),
                  readable_bytes(measured * 3 * sizeof(Link)),
                  readable_bytes(measured * 4 * kObservationBytes));
  if (alone) text += "; --alone off needs half of it, and far less time";
  return "\n" + wrapped(text, 2);
}

std::string headline(const LinkOptions& options, const MessageSettings& settings,
                     const Backend& backend, const NodeMap& nodes) {
  const std::size_t count = nodes.names.size();
  const std::string messages = fmt::format(
      "link_matrix: messages of {}, {} timed after {} untimed; round trips of 8 bytes, {} timed",
      readable_bytes(8.0 * static_cast<double>(settings.words)), settings.iterations,
      settings.warmup, settings.latency_iterations);
  const std::string ranks = fmt::format(
      "on {} ranks of {} node{}, {} ({}), {}", backend.world->size(), count, count == 1 ? "" : "s",
      backend.remark, backend.world->transport(), backend.device->identity().model);
  return wrapped(messages, 2) + "\n" + wrapped(ranks, 2) +
         size_remark(backend.world->size(), options.alone);
}

std::string link_tables(const LinkOptions& options, const LinkResults& results, int ranks) {
  std::vector<Table> tables = tables_of(results.links, options.alone);
  for (Table& table : tables_of(results.copies)) tables.push_back(std::move(table));
  std::string text;
  if (options.matrix == "off" || (options.matrix == "auto" && ranks > kMostRanksInAMatrix))
    text = rank_table(tables, ranks);
  else
    for (const Table& table : tables) text += matrix(table, static_cast<std::size_t>(ranks));
  return text;
}

std::string split_table(const std::vector<Split>& splits) {
  if (splits.empty()) return "";
  std::string text = "\nall_reduce busbw GB/s      ranks\n";
  for (const Split& split : splits)
    text += fmt::format("{:>12} {:<12} {:>6} {:>9.4g}\n", split.scope, split.name, split.world_size,
                        split.busbw_gbs);
  return text;
}

}  // namespace shakedown::collectives
