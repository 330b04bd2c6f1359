#include "collectives/links/outliers.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "common/statistics.hpp"

namespace shakedown::collectives {
namespace {

using TimesByRank = std::map<int, std::vector<double>>;

TimesByRank by_rank(std::span<const LinkTime> links) {
  TimesByRank times;
  for (const LinkTime& link : links) {
    times[link.from].push_back(link.time);
    times[link.to].push_back(link.time);
  }
  return times;
}

/// Ranks three quarters of whose links are slow, judged by the fastest of those three quarters.
std::set<int> suspects(const TimesByRank& times, const OutlierRule& rule) {
  std::set<int> found;
  if (times.size() < 4) return found;  // of three, one could be slow or the two others be fast
  std::map<int, double> scores;
  std::vector<double> sample;
  for (const auto& [rank, own] : times) {
    std::vector<double> sorted = own;
    std::sort(sorted.begin(), sorted.end());
    scores[rank] = sorted[sorted.size() / 4];
    sample.push_back(scores[rank]);
  }
  const double limit = outlier_bar(sample, rule).limit();
  for (const auto& [rank, score] : scores)
    if (score > limit) found.insert(rank);
  return found;
}

}  // namespace

OutlierBar outlier_bar(std::span<const double> values, const OutlierRule& rule) {
  const Summary summary = summarize(values);
  return {summary.median, summary.mad,
          std::max(rule.mad * 1.4826 * summary.mad, rule.percent / 100 * summary.median)};
}

LinkOutliers find_outliers(std::span<const LinkTime> links, const OutlierRule& rule) {
  LinkOutliers found;
  if (links.size() < 3) return found;
  found.compared = true;

  const TimesByRank times = by_rank(links);
  const std::set<int> slow = suspects(times, rule);
  std::vector<double> reference;
  for (const LinkTime& link : links)
    if (!slow.contains(link.from) && !slow.contains(link.to)) reference.push_back(link.time);
  if (reference.empty())  // all links end at a suspect: the only rank of its node
    for (const LinkTime& link : links) reference.push_back(link.time);
  found.bar = outlier_bar(reference, rule);

  const auto is_outlier = [&](double time) { return time > found.bar.limit(); };
  std::set<int> named;
  for (const auto& [rank, own] : times) {
    const auto slow_links = static_cast<int>(std::count_if(own.begin(), own.end(), is_outlier));
    const auto all_links = static_cast<int>(own.size());
    if (all_links < 2 || 4 * slow_links < 3 * all_links) continue;
    found.ranks.push_back({rank, slow_links, all_links, median_of(own)});
    named.insert(rank);
  }
  for (const LinkTime& link : links)
    if (is_outlier(link.time) && !named.contains(link.from) && !named.contains(link.to))
      found.links.push_back(link);
  return found;
}

}  // namespace shakedown::collectives
