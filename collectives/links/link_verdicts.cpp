#include "collectives/links/link_verdicts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "collectives/links/link_series.hpp"

namespace shakedown::collectives {
namespace {

/// Whether a slow link is a failure is the user's decision: links may differ by design.
Outcome outcome_of_outliers(const LinkOptions& options) {
  return options.fail_on_outlier ? Outcome::fail : Outcome::inconclusive;
}

std::string name_of(const Link& link, bool both_ways) {
  return fmt::format("{}{}{}", link.from, both_ways ? "<->" : "->", link.to);
}

class Comparison {
 public:
  Comparison(const LinkOptions& options, const NodeMap& nodes, double bytes,
             const std::vector<Link>& links)
      : outcome_(outcome_of_outliers(options)), nodes_(nodes) {
    for (const Series& series : all_series(options.alone))
      for (bool same_node : {true, false}) compare(series, same_node, bytes, options, links);
    if (compared_ && !too_few_.empty())
      text_ += fmt::format("not compared, fewer than 3 links: {}\n", fmt::join(too_few_, "; "));
  }

  bool compared() const { return compared_; }
  const std::string& text() const { return text_; }
  const std::vector<Verdict>& outliers() const { return outliers_; }

 private:
  void compare(const Series& series, bool same_node, double bytes, const LinkOptions& options,
               const std::vector<Link>& links) {
    const Metric& metric = *series.metric;
    std::vector<LinkTime> alike;
    for (const Link& link : links_of(series, links))
      if ((nodes_.name_of(link.from) == nodes_.name_of(link.to)) == same_node)
        alike.push_back({link.from, link.to, link.*metric.time_us});
    if (alike.empty()) return;

    const std::string what = fmt::format("{}, {}", collectives::name_of(series),
                                         same_node ? "within a node" : "between nodes");
    const LinkOutliers found = find_outliers(alike, options.outlier);
    if (!found.compared) {
      too_few_.push_back(what);
      return;
    }
    compared_ = true;
    const double bytes_moved = (metric.bidirectional ? 2 : 1) * bytes;
    const auto shown = [&](double time_us) {
      return metric.higher_is_better ? bytes_moved / time_us / 1e3 : time_us;
    };
    const std::string bar =
        fmt::format("median {:.4g}, MAD {:.1f} % of it, slow {} {:.4g}", shown(found.bar.median),
                    100 * found.bar.mad / found.bar.median,
                    metric.higher_is_better ? "below" : "above", shown(found.bar.limit()));
    for (const SlowRank& slow : found.ranks)
      outliers_.push_back(
          {Scope::rank, std::to_string(slow.rank), outcome_,
           fmt::format("on {}, {}: {} of its {} links are slow, their median {:.4g}; {}",
                       nodes_.name_of(slow.rank), what, slow.slow_links, slow.links,
                       shown(slow.median), bar)});
    for (const LinkTime& link : found.links)
      outliers_.push_back(
          {Scope::link, fmt::format("{}{}{}", link.from, metric.symmetric ? "<->" : "->", link.to),
           outcome_,
           fmt::format("{} to {}, {}: {:.4g}; {}", nodes_.name_of(link.from),
                       nodes_.name_of(link.to), what, shown(link.time), bar)});
    text_ += fmt::format("{}: {} links, {}: {}\n", what, alike.size(), bar,
                         found.ranks.empty() && found.links.empty() ? "no outlier" : "see below");
  }

  Outcome outcome_;
  const NodeMap& nodes_;
  std::string text_;
  std::vector<Verdict> outliers_;
  std::vector<std::string> too_few_;  // series of fewer links than can be compared
  bool compared_ = false;             // any series
};

/// Judges every link by --min-bandwidth and --max-latency.
std::vector<Verdict> missed_limits(const LinkOptions& options, const std::vector<Link>& links) {
  std::vector<Verdict> missed;
  for (const Link& link : links) {
    if (link.bidirectional) continue;
    const char* concurrency = concurrency_of(link.alone);
    if (link.bandwidth_gbs < options.min_bandwidth_gbs)
      missed.push_back({Scope::link, name_of(link, false), Outcome::fail,
                        fmt::format("{}: {:.4g} GB/s, --min-bandwidth {:g}", concurrency,
                                    link.bandwidth_gbs, options.min_bandwidth_gbs)});
    if (options.max_latency_us > 0 && link.from < link.to &&
        link.latency_us > options.max_latency_us)
      missed.push_back({Scope::link, name_of(link, true), Outcome::fail,
                        fmt::format("{}: latency {:.4g} us, --max-latency {:g}", concurrency,
                                    link.latency_us, options.max_latency_us)});
  }
  return missed;
}

/// Outliers whose judgement was not requested (--fail-on-outlier) leave the job a PASS; where it
/// was, and there is nothing to compare, the job is INCONCLUSIVE.
Verdict verdict_of_job(const LinkOptions& options, const std::vector<Verdict>& findings,
                       bool compared) {
  const auto failures = std::count_if(findings.begin(), findings.end(),
                                      [](const Verdict& v) { return v.outcome == Outcome::fail; });
  const std::size_t others = findings.size() - static_cast<std::size_t>(failures);
  std::string cause = "all messages arrived intact";
  if (failures > 0) cause = fmt::format("failed: {}", failures);
  if (others > 0) cause += fmt::format("; outliers, not judged (--fail-on-outlier): {}", others);
  if (!compared) cause += "; fewer than 3 links of each kind: nothing to compare";
  Outcome outcome = failures > 0 ? Outcome::fail : Outcome::pass;
  if (outcome == Outcome::pass && options.fail_on_outlier && !compared) {
    outcome = Outcome::inconclusive;
    cause += " (--fail-on-outlier)";
  }
  return {Scope::job, "link_matrix", outcome, cause};
}

}  // namespace

LinkVerdicts judge_links(const LinkOptions& options, const NodeMap& nodes, double bytes,
                         const LinkResults& results) {
  const Comparison comparison(options, nodes, bytes, results.links);
  LinkVerdicts verdicts{comparison.text(), results.corruptions, {}};
  const auto add = [&](const std::vector<Verdict>& more) {
    verdicts.findings.insert(verdicts.findings.end(), more.begin(), more.end());
  };
  add(comparison.outliers());
  add(slow_splits(results.splits, options.outlier, outcome_of_outliers(options)));
  add(missed_limits(options, results.links));
  verdicts.job = verdict_of_job(options, verdicts.findings, comparison.compared());
  return verdicts;
}

}  // namespace shakedown::collectives
