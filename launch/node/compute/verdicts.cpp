#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "common/error.hpp"
#include "launch/node/compute/results.hpp"

namespace shakedown::node {
namespace {

std::string key_of(const std::string& model, const std::string& metric) {
  return model + "\n" + metric;
}

/// The ranks of each model.
std::map<std::string, std::vector<std::size_t>> by_model(const Results& results) {
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    ranks[results[rank].model].push_back(rank);
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

/// Adds the findings, their index among `ranks` replaced by the rank.
void add(std::vector<SlowFinding>& findings, const std::vector<Slow>& slow, std::size_t metric,
         const std::vector<std::size_t>& ranks, bool by_reference) {
  for (Slow one : slow) {
    one.gpu = ranks[one.gpu];
    findings.push_back({metric, one, by_reference});
  }
}

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
      fmt::format("{}: {:.4g} {}, compared with {}{}: ", series.metric.name,
                  results[finding.slow.gpu].rate(finding.metric), series.metric.unit,
                  finding.by_reference ? "the reference" : "its peers",
                  finding.slow.fails ? " in two measurements" : ", within what is allowed");
  if (series.metric.follows_clock) {
    const Explanation why = explain(finding.slow, series.metric.limits,
                                    circumstances_of(results, finding.slow, finding.metric));
    verdict.cause += why.cause;
    verdict.class_ = why.class_;
    verdict.action = why.action;
    return verdict;
  }
  verdict.cause +=
      fmt::format("{:.1f} % slower, z = {:.0f}, in {} of {} rounds", 100 * (1 - finding.slow.ratio),
                  finding.slow.z, finding.slow.slow_rounds, finding.slow.rounds);
  const bool memory = series.metric.name.starts_with("memory");
  if (memory) verdict.class_ = Class::hardware;
  verdict.action = memory ? "compare the memory clocks and remapped rows with its peers'; if they "
                            "are alike, RMA"
                          : "inspect the PCIe link: generation and width under load, replays, the "
                            "NUMA node of the host's memory";
  return verdict;
}

/// Where all GPUs are wrong in the same test, it is not a part that is broken.
std::vector<Verdict> wrong_data(const Results& results) {
  std::vector<Verdict> verdicts;
  for (std::size_t metric = 0; metric < results.front().series.size(); ++metric) {
    std::vector<std::size_t> wrong;
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      if (!results[rank].series[metric].wrong.empty()) wrong.push_back(rank);
    const bool all = wrong.size() == results.size() && results.size() > 1;
    for (const std::size_t rank : wrong) {
      const Series& series = results[rank].series[metric];
      Verdict verdict = about(results, rank);
      verdict.outcome = Outcome::fail;
      verdict.cause += fmt::format("{}: wrong data: {}", series.metric.name, series.wrong);
      verdict.class_ = all ? Class::software : Class::hardware;
      verdict.action = all ? "all devices are wrong alike: report it, with the record"
                           : "run bin/soak on it; if it repeats, RMA";
      verdicts.push_back(verdict);
    }
  }
  return verdicts;
}

}  // namespace

ComputeReference::ComputeReference(const std::string& path, const std::string& text, int size,
                                   std::size_t bytes) {
  std::istringstream in(text);
  bool any = false;
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object() || json.value("kind", "") != "compute") continue;
    any = true;
    if (json.contains("size") ? json.at("size") != size : json.value("bytes", Json()) != bytes)
      continue;
    if (!json.value("correct", false)) continue;
    std::vector<double>& rates = rates_[key_of(json.at("model"), json.at("test"))];
    for (const Json& sample : json.at("samples"))
      if (sample.is_number()) rates.push_back(sample);
  }
  if (!any) throw UsageError(fmt::format("--reference {}: holds no compute records", path));
}

std::vector<double> ComputeReference::rates(const std::string& model,
                                            const std::string& metric) const {
  const auto found = rates_.find(key_of(model, metric));
  return found == rates_.end() ? std::vector<double>{} : found->second;
}

RateJudgement judge(const Results& results, const ComputeReference& reference) {
  RateJudgement judgement;
  const PeerRule rule;
  std::set<std::string> missing;
  for (const auto& [model, ranks] : by_model(results))
    for (std::size_t metric = 0; metric < results.front().series.size(); ++metric) {
      const Metric& what = results.front().series[metric].metric;
      const Rates rates = rates_of(results, ranks, metric);
      const std::vector<double> good = reference.rates(model, what.name);
      if (comparable(rates))
        add(judgement.findings, slow_among_peers(rates, what.limits), metric, ranks, false);
      if (!good.empty() && rates.front().size() >= rule.rounds)
        add(judgement.findings, slow_by_reference(rates, good, what.limits), metric, ranks, true);
      else if (!comparable(rates))
        missing.insert(
            rates.front().size() < rule.rounds
                ? fmt::format("--rounds {}: rates are compared over {} or more",
                              rates.front().size(), rule.rounds)
                : fmt::format("{} device{} of {}: peers are compared from {} on, and "
                                         "no --reference has its rates",
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
  for (const SlowFinding& finding : first.findings) {
    const bool repeats =
        std::any_of(again.findings.begin(), again.findings.end(), [&](const SlowFinding& other) {
          return other.metric == finding.metric && other.slow.gpu == finding.slow.gpu &&
                 other.by_reference == finding.by_reference && other.slow.fails;
        });
    if (!finding.slow.fails || repeats) both.findings.push_back(finding);
  }
  return both;
}

std::vector<Verdict> verdicts_of(const Results& results, const RateJudgement& judgement) {
  std::vector<Verdict> verdicts = wrong_data(results);
  for (const SlowFinding& finding : judgement.findings)
    verdicts.push_back(verdict_of(results, finding));
  const auto failed = std::count_if(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
    return verdict.outcome == Outcome::fail;
  });
  Verdict job{Scope::job, "compute_perf", Outcome::pass, "all results right, no device is slow"};
  if (!judgement.not_judged.empty()) {
    job.outcome = Outcome::inconclusive;
    job.cause = fmt::format("all results right, rates not judged: {}",
                            fmt::join(judgement.not_judged, "; "));
    job.action = "run on more GPUs, or with --reference FILE: a record of a good machine";
  }
  if (failed > 0)
    job = {Scope::job, "compute_perf", Outcome::fail, fmt::format("failed: {}", failed)};
  verdicts.push_back(job);
  return verdicts;
}

}  // namespace shakedown::node
