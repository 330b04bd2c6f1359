#include "collectives/links/link_tables.hpp"

#include <fmt/format.h>

#include "collectives/links/link_series.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kMostRanksInAMatrix = 16;

std::string matrix(const Series& series, const std::vector<Link>& links, std::size_t ranks) {
  std::vector<std::string> cells(ranks * ranks, "-");
  for (const Link& link : links_of(series, links)) {
    const auto from = static_cast<std::size_t>(link.from);
    const auto to = static_cast<std::size_t>(link.to);
    const std::string text = fmt::format("{:.4g}", link.*series.metric->shown);
    cells[from * ranks + to] = text;
    if (series.metric->symmetric) cells[to * ranks + from] = text;
  }
  std::string text = fmt::format("\n{}\n{:>7}", name_of(series), "from\\to");
  for (std::size_t to = 0; to < ranks; ++to) text += fmt::format(" {:>9}", to);
  for (std::size_t from = 0; from < ranks; ++from) {
    text += fmt::format("\n{:>7}", from);
    for (std::size_t to = 0; to < ranks; ++to)
      text += fmt::format(" {:>9}", cells[from * ranks + to]);
  }
  return text + "\n";
}

std::string rank_table(const std::vector<Series>& all, const std::vector<Link>& links, int ranks) {
  std::string text = "\nof each rank's links: median, worst\n   rank";
  for (const Series& series : all) text += fmt::format("  {:>26}", name_of(series));
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("\n{:>7}", rank);
    for (const Series& series : all) {
      std::vector<double> own;
      for (const Link& link : links_of(series, links))
        if (link.from == rank || link.to == rank) own.push_back(link.*series.metric->shown);
      const Summary summary = summarize(own);
      text += fmt::format("  {:>13.4g}{:>13.4g}", summary.median,
                          series.metric->higher_is_better ? summary.min : summary.max);
    }
  }
  return text + "\n";
}

}  // namespace

std::string size_remark(int ranks, bool alone) {
  constexpr int kFewRanks = 64;
  constexpr double kRecordBytes = 375;  // of a link
  if (ranks <= kFewRanks) return "";
  const double pairs = 0.5 * ranks * (ranks - 1);
  const double links = pairs * 3 * (alone ? 2 : 1);  // each direction, both at once
  std::string text =
      fmt::format("{:.0f} pairs of ranks: about {} of record or CSV, {} on each rank", pairs,
                  readable_bytes(links * kRecordBytes), readable_bytes(links * sizeof(Link)));
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

std::string link_tables(const LinkOptions& options, const std::vector<Link>& links, int ranks) {
  const std::vector<Series> all = all_series(options.alone);
  if (options.matrix == "off" || (options.matrix == "auto" && ranks > kMostRanksInAMatrix))
    return rank_table(all, links, ranks);
  std::string text;
  for (const Series& series : all) text += matrix(series, links, static_cast<std::size_t>(ranks));
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
