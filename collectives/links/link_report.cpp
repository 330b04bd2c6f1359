#include "collectives/links/link_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/statistics.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kMostRanksInAMatrix = 16;

struct Metric {
  const char* name;
  const char* unit;
  bool bidirectional;  // of which links
  bool symmetric;      // one value for both directions
  bool higher_is_better;
  double Link::*shown;
  double Link::*time;  // us, what is compared
};
constexpr Metric kMetrics[] = {
    {"unidirectional", "GB/s", false, false, true, &Link::bandwidth_gbs, &Link::time_us_p50},
    {"bidirectional", "GB/s", true, true, true, &Link::bandwidth_gbs, &Link::time_us_p50},
    {"latency", "us", false, true, false, &Link::latency_us, &Link::latency_us},
};

}  // namespace

struct LinkReport::Series {
  const Metric& metric;
  bool alone;
};

LinkReport::LinkReport(const LinkOptions& options, const NodeMap& nodes, const Backend& backend,
                       const MessageSettings& settings, Record& record)
    : options_(options),
      nodes_(nodes),
      backend_(backend),
      settings_(settings),
      record_(record),
      identity_{{"backend", name_of(backend.kind)},
                {"transport", backend.world->transport()},
                {"world_size", backend.world->size()}} {}

const std::string& LinkReport::node_of(int rank) const {
  return nodes_.names[static_cast<std::size_t>(nodes_.node_of[static_cast<std::size_t>(rank)])];
}

/// Whether a slow link is a failure is the user's decision: links may differ by design.
ExitCode LinkReport::outlier_code() const {
  return options_.fail_on_outlier ? ExitCode::fail : ExitCode::inconclusive;
}

double LinkReport::bytes() const { return 8.0 * static_cast<double>(settings_.words); }

std::string LinkReport::headline() const {
  const std::size_t nodes = nodes_.names.size();
  return fmt::format(
      "link_matrix: messages of {}, {} timed behind {}; round trips of 8 bytes, {} timed\n"
      "on {} ranks of {} node{}, {} ({}), {}",
      readable_bytes(bytes()), settings_.iterations, settings_.warmup, settings_.latency_iterations,
      backend_.world->size(), nodes, nodes == 1 ? "" : "s", backend_.remark,
      backend_.world->transport(), backend_.device->identity().model);
}

void LinkReport::add(const std::vector<Link>& links) {
  for (const Link& link : links) {
    Json fields{{"from", link.from},
                {"to", link.to},
                {"from_host", node_of(link.from)},
                {"to_host", node_of(link.to)},
                {"direction", link.bidirectional ? "bidirectional" : "unidirectional"},
                {"concurrency", link.alone ? "alone" : "concurrent"},
                {"bytes", 8 * settings_.words},
                {"bandwidth_gbs", link.bandwidth_gbs}};
    if (!link.bidirectional) fields["latency_us"] = link.latency_us;
    fields.update({{"iterations", settings_.iterations},
                   {"time_us_p50", link.time_us_p50},
                   {"time_us_cv", link.time_us_cv},
                   {"wrong_elements", static_cast<std::int64_t>(link.wrong_elements)}});
    record_.write("link", merged(identity_, fields));
    links_.push_back(link);
  }
}

void LinkReport::add(const std::vector<Split>& splits) {
  for (const Split& split : splits) {
    Json fields{{"scope", split.scope},
                {"name", split.name},
                {"operation", "all_reduce"},
                {"bytes", 8 * settings_.words},
                {"busbw_gbs", split.busbw_gbs},
                {"iterations", settings_.iterations},
                {"time_us_p50", split.time_us_p50},
                {"wrong_elements", static_cast<std::int64_t>(split.wrong_elements)}};
    fields["world_size"] = split.world_size;
    record_.write("split", merged(identity_, fields));
    splits_.push_back(split);
  }
}

void LinkReport::add(const std::vector<Finding>& findings) {
  findings_.insert(findings_.end(), findings.begin(), findings.end());
}

std::vector<LinkReport::Series> LinkReport::all_series() const {
  std::vector<Series> all;
  for (const Metric& metric : kMetrics)
    for (bool alone : {false, true})
      if (options_.alone || !alone) all.push_back({metric, alone});
  return all;
}

std::string LinkReport::name_of_series(const Series& series) const {
  return fmt::format("{} {}, {}", series.metric.name, series.metric.unit,
                     series.alone ? "alone" : "concurrent");
}

std::vector<Link> LinkReport::links_of(const Series& series) const {
  std::vector<Link> links;
  for (const Link& link : links_)
    if (link.alone == series.alone && link.bidirectional == series.metric.bidirectional &&
        (!series.metric.symmetric || link.from < link.to))
      links.push_back(link);
  return links;
}

std::string LinkReport::matrix(const Series& series) const {
  const auto ranks = static_cast<std::size_t>(backend_.world->size());
  std::vector<std::string> cells(ranks * ranks, "-");
  for (const Link& link : links_of(series)) {
    const auto from = static_cast<std::size_t>(link.from);
    const auto to = static_cast<std::size_t>(link.to);
    const std::string text = fmt::format("{:.4g}", link.*series.metric.shown);
    cells[from * ranks + to] = text;
    if (series.metric.symmetric) cells[to * ranks + from] = text;
  }
  std::string text = fmt::format("\n{}\n{:>7}", name_of_series(series), "from\\to");
  for (std::size_t to = 0; to < ranks; ++to) text += fmt::format(" {:>9}", to);
  for (std::size_t from = 0; from < ranks; ++from) {
    text += fmt::format("\n{:>7}", from);
    for (std::size_t to = 0; to < ranks; ++to)
      text += fmt::format(" {:>9}", cells[from * ranks + to]);
  }
  return text + "\n";
}

std::string LinkReport::rank_table() const {
  std::string text = "\nof each rank's links: median, worst\n   rank";
  for (const Series& series : all_series()) text += fmt::format("  {:>26}", name_of_series(series));
  for (int rank = 0; rank < backend_.world->size(); ++rank) {
    text += fmt::format("\n{:>7}", rank);
    for (const Series& series : all_series()) {
      std::vector<double> own;
      for (const Link& link : links_of(series))
        if (link.from == rank || link.to == rank) own.push_back(link.*series.metric.shown);
      const Summary summary = summarize(own);
      text += fmt::format("  {:>13.4g}{:>13.4g}", summary.median,
                          series.metric.higher_is_better ? summary.min : summary.max);
    }
  }
  return text + "\n";
}

std::string LinkReport::split_table() const {
  if (splits_.empty()) return "";
  std::string text = "\nall_reduce busbw GB/s      ranks\n";
  for (const Split& split : splits_)
    text += fmt::format("{:>12} {:<12} {:>6} {:>9.4g}\n", split.scope, split.name, split.world_size,
                        split.busbw_gbs);
  return text;
}

std::string LinkReport::tables() const {
  std::string text;
  if (options_.matrix == "on" ||
      (options_.matrix == "auto" && backend_.world->size() <= kMostRanksInAMatrix))
    for (const Series& series : all_series()) text += matrix(series);
  else
    text += rank_table();
  return text + split_table();
}

std::string LinkReport::compare(const Series& series, bool same_node) {
  const Metric& metric = series.metric;
  std::vector<LinkTime> alike;
  for (const Link& link : links_of(series))
    if ((node_of(link.from) == node_of(link.to)) == same_node)
      alike.push_back({link.from, link.to, link.*metric.time});
  if (alike.empty()) return "";

  const std::string what = name_of_series(series);
  const char* where = same_node ? "within a node" : "between nodes";
  const LinkOutliers found = find_outliers(alike, options_.outlier);
  if (!found.compared) {
    too_few_.push_back(fmt::format("{}, {}", what, where));
    return "";
  }
  compared_ = true;
  const double bytes_moved = (metric.bidirectional ? 2 : 1) * bytes();
  const auto shown = [&](double time_us) {
    return metric.higher_is_better ? bytes_moved / time_us / 1e3 : time_us;
  };
  const std::string bar =
      fmt::format("median {:.4g}, MAD {:.1f} % of it, slow {} {:.4g}", shown(found.bar.median),
                  100 * found.bar.mad / found.bar.median,
                  metric.higher_is_better ? "below" : "above", shown(found.bar.limit()));
  const ExitCode code = outlier_code();
  for (const SlowRank& slow : found.ranks)
    findings_.push_back(
        {"rank", std::to_string(slow.rank), code,
         fmt::format("on {}, {}, {}: {} of its {} links are slow, their median {:.4g}; {}",
                     node_of(slow.rank), what, where, slow.slow_links, slow.links,
                     shown(slow.median), bar)});
  for (const LinkTime& link : found.links)
    findings_.push_back(
        {"link", fmt::format("{}{}{}", link.from, metric.symmetric ? "<->" : "->", link.to), code,
         fmt::format("{} to {}, {}: {:.4g}; {}", node_of(link.from), node_of(link.to), what,
                     shown(link.time), bar)});
  const std::size_t outliers = found.ranks.size() + found.links.size();
  return fmt::format("{}, {}: {} links, {}: {}\n", what, where, alike.size(), bar,
                     outliers == 0 ? "no outlier" : "see below");
}

void LinkReport::check_limits() {
  for (const Link& link : links_) {
    if (link.bidirectional) continue;
    const char* concurrency = link.alone ? "alone" : "concurrent";
    if (link.bandwidth_gbs < options_.min_bandwidth_gbs)
      findings_.push_back({"link", fmt::format("{}->{}", link.from, link.to), ExitCode::fail,
                           fmt::format("{}: {:.4g} GB/s, --min-bandwidth {:g}", concurrency,
                                       link.bandwidth_gbs, options_.min_bandwidth_gbs)});
    if (options_.max_latency_us > 0 && link.from < link.to &&
        link.latency_us > options_.max_latency_us)
      findings_.push_back({"link", fmt::format("{}<->{}", link.from, link.to), ExitCode::fail,
                           fmt::format("{}: latency {:.4g} us, --max-latency {:g}", concurrency,
                                       link.latency_us, options_.max_latency_us)});
  }
}

std::string LinkReport::judge() {
  std::string text;
  for (const Series& series : all_series())
    for (bool same_node : {true, false}) text += compare(series, same_node);
  if (compared_ && !too_few_.empty())
    text += fmt::format("not compared, fewer than 3 links: {}\n", fmt::join(too_few_, "; "));
  add(slow_splits(splits_, options_.outlier, outlier_code()));
  check_limits();

  const auto failures = std::count_if(findings_.begin(), findings_.end(),
                                      [](const Finding& f) { return f.code == ExitCode::fail; });
  const std::size_t others = findings_.size() - static_cast<std::size_t>(failures);
  std::string cause = "every message came in right";
  if (failures > 0) cause = fmt::format("failed: {}", failures);
  if (others > 0) cause += fmt::format("; outliers, not judged (--fail-on-outlier): {}", others);
  if (!compared_) cause += "; fewer than 3 links of each kind: nothing to compare";
  add({{"job", "link_matrix", code(), cause}});
  for (const Finding& finding : findings_) {
    record_.write("verdict", merged(identity_, record_of(finding)));
    text += fmt::format("{:<12} {} {}: {}\n", verdict_of(finding.code), finding.scope, finding.name,
                        finding.cause);
  }
  return text;
}

ExitCode LinkReport::code() const {
  const bool failed = std::any_of(findings_.begin(), findings_.end(),
                                  [](const Finding& f) { return f.code == ExitCode::fail; });
  return failed ? ExitCode::fail : ExitCode::pass;
}

}  // namespace shakedown::collectives
