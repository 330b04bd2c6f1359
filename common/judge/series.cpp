#include "common/judge/series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "common/judge/witnesses.hpp"
#include "common/nvml.hpp"
#include "common/statistics.hpp"

namespace shakedown::judge {
namespace {

std::string group_key(const Observation& o) {
  std::string key = o.metric + "|" + o.unit + "|" + o.backend + "|" +
                    (o.pci_device_id.empty() ? o.board : o.pci_device_id.substr(0, 9)) + "|" +
                    o.path_class;
  for (const auto& [name, value] : o.conditions) key += "|" + name + "=" + value;
  return key;
}

/// Why a measurement judges nothing; empty: it does.
std::string why_not(const Observation& o, const Limit& limit, const Peak& peak) {
  switch (o.taken) {
    case Taken::timed_out: return "it timed out";
    case Taken::not_supported: return "it is not supported here";
    case Taken::out_of_memory: return "there was not enough memory";
    case Taken::measured: break;
  }
  if (o.check == Check::wrong) return "its data were wrong";
  if (!o.disturbed_by.empty()) return o.disturbed_by;
  if (o.samples.size() < limit.samples)
    return fmt::format("{} samples, {} are needed", o.samples.size(), limit.samples);
  if (!std::all_of(o.samples.begin(), o.samples.end(),
                   [](double sample) { return std::isfinite(sample); }))
    return "a sample is not a number";
  const double least = *std::ranges::min_element(o.samples);  // of a rate 0: nothing moved
  if (least < 0 || (least == 0 && o.less_is_better())) return "a sample is not above 0";
  constexpr double kRounded = 1.05;  // rows of boards, and what a device says, are rounded
  const double most = *std::ranges::max_element(o.samples);
  if (peak.bounds && most > kRounded * peak.value)
    return fmt::format("a sample, {:.4g} {}, is above the peak of {:.4g} ({})", most, o.unit,
                       peak.value, peak.by);
  return "";
}

void add(Series& series, std::size_t index, const Observation& o, const Limit& limit,
         const Peak& peak) {
  Look look{index};
  std::string why = why_not(o, limit, peak);
  if (why.empty()) {
    look.value = statistic_of(o.samples, limit.statistic, o.less_is_better());
    const double spread = look_spread(o.samples, limit.statistic, o.less_is_better());
    if (std::isfinite(spread)) look.spread = spread;  // of a value of 0 there is none
    if (!std::isfinite(look.value)) why = "its samples are too large";
  }
  if (!why.empty()) {
    series.unjudged = why;
    series.disturbed = !o.disturbed_by.empty();
    series.absent = o.taken == Taken::not_supported;
  }
  series.looks.push_back(look);
}

/// The last run counts: a look that could not be judged neither clears nor blames, one of its looks
/// must judge, and wrong data stay wrong.
void settle(Series& series, const std::vector<Observation>& observations) {
  const std::string& run = observations[series.looks.back().observation].run;
  const auto judges = [](const Look& look) { return std::isfinite(look.value); };
  bool judged = false, wrong = false;
  for (const Look& look : series.looks) {
    const Observation& o = observations[look.observation];
    if (o.run != run) continue;
    series.taken = std::max(series.taken, o.look);
    judged = judged || judges(look);
    wrong = wrong || o.check == Check::wrong;
    series.last += judges(look) ? 1 : 0;
  }
  if (judged && !wrong) {
    std::erase_if(series.looks, std::not_fn(judges));
    series.unjudged.clear();
  } else {
    for (Look& look : series.looks) look.value = kUnknown;  // nobody's peer
  }
}

}  // namespace

std::vector<Peers> peers_of(const std::vector<Observation>& observations, const Limits& limits,
                            const Boards& boards) {
  std::map<std::string, std::map<std::string, std::vector<std::size_t>>> groups;
  std::map<std::string, const Limit*> known;
  for (std::size_t i = 0; i < observations.size(); ++i) {
    const Observation& o = observations[i];
    const auto [limit, is_new] = known.try_emplace(o.metric, nullptr);
    if (is_new) limit->second = limits.find(o.metric);
    if (limit->second != nullptr) groups[group_key(o)][o.of.key()].push_back(i);
  }
  std::vector<Peers> all;
  for (auto& [key, subjects] : groups) {
    const Observation& first = observations[subjects.begin()->second.front()];
    Peers peers{known[first.metric], 0, {}, {}};
    if (peers.limit->share && first.backend != "cpu") peers.peak = peak_of(first, boards);
    for (auto& [subject, indices] : subjects) {
      const auto order = [&](std::size_t i) {
        const Observation& o = observations[i];
        return std::tie(o.run, o.look, o.stage, o.samples);
      };
      std::ranges::sort(indices, {}, order);
      // A run counts once, in however many files it stands.
      const auto alike = [&](std::size_t a, std::size_t b) { return order(a) == order(b); };
      indices.erase(std::unique(indices.begin(), indices.end(), alike), indices.end());
      Series series;
      series.subject = subject;
      for (const std::size_t i : indices) add(series, i, observations[i], *peers.limit, peers.peak);
      settle(series, observations);
      peers.series.push_back(std::move(series));
    }
    peers.observation = peers.series.front().looks.front().observation;
    all.push_back(std::move(peers));
  }
  return all;
}

double slower_by(const Observation& of, double value, double usual) {
  if (of.less_is_better()) return usual > 0 ? value / usual - 1 : INFINITY;
  return value > 0 ? usual / value - 1 : INFINITY;
}

double slowed(const Observation& of, double usual, double r) {
  return of.less_is_better() ? usual * (1 + r) : usual / (1 + r);
}

namespace {

/// The distribution function of Beta(a, a): its continued fraction, by Lentz's method.
double symmetric_beta(double a, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > 0.5) return 1 - symmetric_beta(a, 1 - x);
  constexpr double kTiny = 1e-300;
  double c = 1, d = 1 / std::max(1 - 2 * a * x / (a + 1), kTiny), fraction = d;
  for (int m = 1; m < 10000; ++m) {
    for (const double term : {m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      if (std::abs(c) < kTiny) c = kTiny;
      fraction *= c * d;
    }
    if (std::abs(c * d - 1) < 1e-14) break;
  }
  const double log_front = std::lgamma(2 * a) - 2 * std::lgamma(a) + a * std::log(x * (1 - x));
  return std::exp(log_front) * fraction / a;
}

bool usable(std::span<const double> samples) {
  return !samples.empty() &&
         std::all_of(samples.begin(), samples.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

double statistic_of(std::span<const double> samples, Statistic statistic, bool less_is_better) {
  if (!usable(samples)) return kUnknown;
  switch (statistic) {
    case Statistic::median: return median_of(samples);
    case Statistic::best:
      return less_is_better ? *std::min_element(samples.begin(), samples.end())
                            : *std::max_element(samples.begin(), samples.end());
    case Statistic::last: return samples.back();
  }
  return kUnknown;
}

double look_spread(std::span<const double> samples, Statistic statistic, bool less_is_better) {
  const double value = statistic_of(samples, statistic, less_is_better);
  if (!std::isfinite(value) || value == 0) return kUnknown;
  if (statistic == Statistic::last) return 0;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  if (statistic == Statistic::best && !less_is_better) std::reverse(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  // That the statistic of a resample is one of the first i of them.
  const auto within = [&](double i) {
    return statistic == Statistic::median ? symmetric_beta((n + 1) / 2, i / n)
                                          : 1 - std::pow((n - i) / n, n);
  };
  double squares = 0, before = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const double up_to = within(static_cast<double>(i + 1));
    const double change = sorted[i] / value - 1;
    squares += (up_to - before) * change * change;
    before = up_to;
  }
  return std::sqrt(squares);
}

}  // namespace shakedown::judge
