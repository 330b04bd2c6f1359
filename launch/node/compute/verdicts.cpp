#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "common/statistics.hpp"
#include "launch/node/compute/results.hpp"
#include "launch/node/health/facts/near_device.hpp"

namespace shakedown::node {
namespace {

/// The ranks of each model whose devices nobody else uses.
std::map<std::string, std::vector<std::size_t>> by_model(const Results& results) {
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    if (results[rank].in_use.empty()) ranks[results[rank].model].push_back(rank);
  return ranks;
}

Rates rates_of(const Results& results, const std::vector<std::size_t>& ranks, std::size_t metric) {
  Rates rates;
  for (const std::size_t rank : ranks) {
    std::vector<double> rounds;
    for (const Sample& sample : results[rank].series[metric].samples) rounds.push_back(sample.rate);
    rates.push_back(rounds);
  }
  return rates;
}

double median_or_unknown(const std::vector<double>& values) {
  return values.empty() ? kUnknown : median_of(values);
}

/// The typical readings of these ranks, where they are known.
std::vector<double> readings(const Results& results, const std::vector<std::size_t>& ranks,
                             std::size_t metric, double GpuWindow::*reading) {
  std::vector<double> known;
  for (const std::size_t rank : ranks)
    if (const double value = typical(results[rank].series[metric], reading); std::isfinite(value))
      known.push_back(value);
  return known;
}

/// The findings of one metric among the ranks of one model.
class Comparison {
 public:
  Comparison(const Results& results, const std::vector<std::size_t>& ranks, std::size_t metric,
             std::vector<SlowFinding>& findings)
      : results_(results), ranks_(ranks), metric_(metric), findings_(findings) {}

  void with_peers(const Rates& rates, const Limits& limits) {
    add(slow_among_peers(rates, limits), false,
        readings(results_, ranks_, metric_, &GpuWindow::sm_clock_mhz),
        readings(results_, ranks_, metric_, &GpuWindow::temperature_c));
  }
  void with_reference(const Rates& rates, const ReferenceFigures& good, const Limits& limits) {
    add(slow_by_reference(rates, good.rates, limits), true, good.clocks_mhz, good.temperatures_c);
  }

 private:
  void add(const std::vector<Slow>& found, bool by_reference, const std::vector<double>& clocks_mhz,
           const std::vector<double>& temperatures_c) {
    for (Slow slow : found) {
      slow.gpu = ranks_[slow.gpu];
      const Series& own = results_[slow.gpu].series[metric_];
      findings_.push_back({metric_,
                           slow,
                           by_reference,
                           {typical(own, &GpuWindow::sm_clock_mhz), median_or_unknown(clocks_mhz),
                            typical(own, &GpuWindow::temperature_c),
                            median_or_unknown(temperatures_c), throttle_reasons_of(own)},
                           results_[slow.gpu].rate(metric_)});
    }
  }

  const Results& results_;
  const std::vector<std::size_t>& ranks_;
  std::size_t metric_;
  std::vector<SlowFinding>& findings_;
};

Verdict about(const Results& results, std::size_t rank) {
  Verdict verdict;
  verdict.scope = results[rank].gpu.empty() ? Scope::rank : Scope::gpu;
  verdict.name = results[rank].gpu.empty() ? std::to_string(rank) : results[rank].gpu;
  verdict.cause = fmt::format("rank {} on {}, ", rank, results[rank].host);
  return verdict;
}

Verdict verdict_of(const Results& results, const SlowFinding& finding) {
  const Series& series = results[finding.slow.gpu].series[finding.metric];
  Verdict verdict = about(results, finding.slow.gpu);
  verdict.outcome = finding.slow.fails ? Outcome::fail : Outcome::pass;
  verdict.cause +=
      fmt::format("{}: {:.4g} {}, compared with {}{}: ", series.metric.name, finding.rate,
                  series.metric.unit, finding.by_reference ? "the reference" : "its peers",
                  finding.slow.fails ? " in two measurements"
                  : finding.once     ? " in 1 of 2 measurements"
                                     : ", within what is allowed");
  if (series.metric.follows_clock) {
    const Explanation why = explain(finding.slow, series.metric.limits, finding.seen);
    verdict.cause += why.cause;
    verdict.class_ = why.class_;
    verdict.action = why.action;
    return verdict;
  }
  verdict.cause +=
      fmt::format("{:.1f} % slower, z = {:.0f}, in {} of {} rounds", 100 * (1 - finding.slow.ratio),
                  finding.slow.z, finding.slow.slow_rounds, finding.slow.rounds);
  if (results[finding.slow.gpu].gpu.empty()) {
    verdict.class_ = Class::environment;
    verdict.action = "run again; if it repeats, look for other work on its cores";
  } else if (series.metric.name.starts_with("memory")) {
    verdict.class_ = Class::hardware;
    verdict.action =
        "compare the memory clocks and remapped rows with its peers'; if they are alike, RMA";
  } else if (series.detail.starts_with(kNotNear)) {
    verdict.cause += "; its host memory is " + series.detail;
    verdict.class_ = Class::config;
    verdict.action = "let the rank use cores of its GPU's NUMA node: launch/mpi --bind none";
  } else {
    verdict.cause += "; its host memory: " + series.detail;
    verdict.class_ = Class::infrastructure;
    verdict.action = "inspect the PCIe link: generation and width under load, replays";
  }
  return verdict;
}

/// Whether all devices, of two or more, fail as this one does compared with the reference.
bool all_alike(const Results& results, const RateJudgement& judgement, const SlowFinding& finding) {
  const auto alike = std::count_if(
      judgement.findings.begin(), judgement.findings.end(), [&](const SlowFinding& other) {
        return other.metric == finding.metric && other.by_reference && other.slow.fails;
      });
  const auto judged = std::count_if(results.begin(), results.end(),
                                    [](const auto& result) { return result.in_use.empty(); });
  return finding.by_reference && finding.slow.fails && judged > 1 && alike == judged;
}

/// Where all GPUs are wrong alike in the same test, it is the program or a library.
std::vector<Verdict> wrong_data(const Results& results) {
  std::vector<Verdict> verdicts;
  for (std::size_t metric = 0; metric < results.front().series.size(); ++metric) {
    std::vector<std::size_t> wrong;
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      if (!results[rank].series[metric].wrong.empty()) wrong.push_back(rank);
    const std::string& first = results.front().series[metric].wrong;
    const bool alike =
        results.size() > 1 && std::all_of(results.begin(), results.end(), [&](const auto& result) {
          return !first.empty() && result.series[metric].wrong == first;
        });
    for (const std::size_t rank : wrong) {
      const Series& series = results[rank].series[metric];
      Verdict verdict = about(results, rank);
      verdict.outcome = alike ? Outcome::inconclusive : Outcome::fail;
      verdict.cause += fmt::format("{}: wrong data: {}", series.metric.name, series.wrong);
      verdict.class_ = alike ? Class::software : Class::hardware;
      verdict.action = alike ? "all devices are wrong alike, which is no device's fault: report "
                               "it, with the record"
                       : results[rank].gpu.empty() ? "run bin/soak on it"
                                                   : "run bin/soak on it; if it repeats, RMA";
      verdicts.push_back(verdict);
    }
  }
  return verdicts;
}

/// A verdict per GPU that others use as well: its rates are no measure of it.
std::vector<Verdict> shared_gpus(const Results& results) {
  std::vector<Verdict> verdicts;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].in_use.empty()) continue;
    Verdict verdict = about(results, rank);
    verdict.outcome = Outcome::inconclusive;
    verdict.cause += results[rank].in_use + ": its rates are theirs as well";
    verdict.class_ = Class::environment;
    verdict.action = "end them, or run again when the GPU is free";
    verdicts.push_back(verdict);
  }
  return verdicts;
}

Verdict verdict_of_job(const std::vector<Verdict>& found,
                       const std::vector<std::string>& not_judged) {
  const auto count = [&](Outcome outcome, Class class_) {
    return std::ranges::count_if(found, [&](const Verdict& verdict) {
      return verdict.outcome == outcome && verdict.class_ == class_;
    });
  };
  const auto failed = std::ranges::count(found, Outcome::fail, &Verdict::outcome);
  Verdict job{Scope::job, "compute_perf", Outcome::pass, "all results right, no device is slow"};
  if (!not_judged.empty()) {
    job.outcome = Outcome::inconclusive;
    job.cause = fmt::format("all results right, rates not judged: {}", fmt::join(not_judged, "; "));
    job.action = "run on more devices, or with --reference FILE: a record of a good machine";
  }
  if (const auto shared = count(Outcome::inconclusive, Class::environment); shared > 0)
    job = {Scope::job,
           "compute_perf",
           Outcome::inconclusive,
           fmt::format("all results right, GPUs in use by others: {}", shared),
           Class::environment,
           "run again when the GPUs are free"};
  if (count(Outcome::inconclusive, Class::software) > 0)
    job = {Scope::job,
           "compute_perf",
           Outcome::inconclusive,
           "all devices have the same wrong results",
           Class::software,
           "report it, with the record"};
  if (failed > 0)
    job = {Scope::job, "compute_perf", Outcome::fail, fmt::format("failed: {}", failed)};
  return job;
}

}  // namespace

RateJudgement judge(const Results& results, const ComputeReference& reference) {
  RateJudgement judgement;
  const PeerRule rule;
  std::set<std::string> missing;
  for (const auto& [model, ranks] : by_model(results))
    for (std::size_t metric = 0; metric < results.front().series.size(); ++metric) {
      const Metric& what = results.front().series[metric].metric;
      const Rates rates = rates_of(results, ranks, metric);
      const ReferenceFigures good = reference.figures(model, what.name);
      Comparison comparison(results, ranks, metric, judgement.findings);
      const auto sharing = std::find_if(ranks.begin(), ranks.end(), [&](const auto rank) {
        return !results[rank].shares.empty();
      });
      const bool peers = comparable(rates) && sharing == ranks.end();
      const bool split = peers && divided(rates, what.limits);
      if (peers) comparison.with_peers(rates, what.limits);  // one far from both groups is slow
      if (!good.rates.empty() && rates.front().size() >= rule.rounds)
        comparison.with_reference(rates, good, what.limits);
      else if (split)
        missing.insert(division_of(what.name, rates, what.limits, what.unit));
      else if (comparable(rates) && !peers)
        missing.insert(results[*sharing].shares + ": they compete for them, and are no peers");
      else if (!peers)
        missing.insert(rates.front().size() < rule.rounds
                           ? fmt::format("--rounds {}: rates are compared over {} or more",
                                         rates.front().size(), rule.rounds)
                           : fmt::format("{} device{} of {}: peers are compared from {} on, and no "
                                         "--reference has its rates with this size and --seconds",
                                         ranks.size(), ranks.size() == 1 ? "" : "s", model,
                                         rule.peers));
    }
  judgement.not_judged.assign(missing.begin(), missing.end());
  return judgement;
}

std::vector<std::size_t> suspects(const RateJudgement& judgement) {
  std::set<std::size_t> metrics;
  for (const SlowFinding& finding : judgement.findings)
    if (finding.slow.fails) metrics.insert(finding.metric);
  return {metrics.begin(), metrics.end()};
}

RateJudgement confirmed(const RateJudgement& first, const RateJudgement& again) {
  RateJudgement both{{}, first.not_judged};
  for (const std::string& why : again.not_judged)  // then a slow device is not cleared, either
    if (std::find(first.not_judged.begin(), first.not_judged.end(), why) == first.not_judged.end())
      both.not_judged.push_back("again: " + why);
  const auto fails_in = [](const RateJudgement& judgement, const SlowFinding& finding) {
    return std::ranges::any_of(judgement.findings, [&](const SlowFinding& other) {
      return other.metric == finding.metric && other.by_reference == finding.by_reference &&
             !confirmed({finding.slow}, {other.slow}).empty();
    });
  };
  const auto add = [&](SlowFinding finding, bool repeats) {
    finding.once = finding.slow.fails && !repeats;
    finding.slow.fails = finding.slow.fails && repeats;
    both.findings.push_back(finding);
  };
  for (const SlowFinding& finding : first.findings) add(finding, fails_in(again, finding));
  for (const SlowFinding& finding : again.findings)
    if (finding.slow.fails && !fails_in(first, finding)) add(finding, false);
  return both;
}

std::vector<Verdict> verdicts_of(const Results& results, const RateJudgement& judgement) {
  std::vector<Verdict> verdicts = wrong_data(results);
  std::ranges::move(shared_gpus(results), std::back_inserter(verdicts));
  for (const SlowFinding& finding : judgement.findings) {
    if (!results[finding.slow.gpu].in_use.empty()) continue;
    verdicts.push_back(verdict_of(results, finding));
    if (!all_alike(results, judgement, finding)) continue;
    verdicts.back().class_ = Class::config;
    verdicts.back().action =
        "all devices are alike: compare driver, libraries, power limit and "
        "clock settings with the reference's";
  }
  verdicts.push_back(verdict_of_job(verdicts, judgement.not_judged));
  return verdicts;
}

}  // namespace shakedown::node
