// What all ranks measured, as every rank knows it; and what it means.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "common/verdict.hpp"
#include "launch/node/compute/judge.hpp"
#include "launch/node/compute/rate_tests.hpp"

namespace shakedown::node {

/// One rank's device and series; all ranks have series of the same metrics in the same order.
struct RankResult {
  std::string host, gpu, model;  // gpu: its UUID; empty on the cpu backend
  std::vector<Series> series;

  double rate(std::size_t metric) const;  // median of the rounds
};
using Results = std::vector<RankResult>;

/// Collective.
Results gather(const MpiSession& session, const DeviceIdentity& device,
               const std::vector<std::unique_ptr<RateTest>>& tests);

/// The rates of good machines, by model and metric.
class ComputeReference {
 public:
  /// Of the text of a record; sizes other than these are not comparable. Throws UsageError where it
  /// has no record of compute_perf.
  ComputeReference(const std::string& path, const std::string& text, int size, std::size_t bytes);
  ComputeReference() = default;
  /// Empty where the reference does not have it.
  std::vector<double> rates(const std::string& model, const std::string& metric) const;

 private:
  std::map<std::string, std::vector<double>> rates_;
};

struct SlowFinding {
  std::size_t metric = 0;
  Slow slow;  // slow.gpu is a rank
  bool by_reference = false;
};
struct RateJudgement {
  std::vector<SlowFinding> findings;
  std::vector<std::string> not_judged;  // why, by model; empty: every rate was compared
};
RateJudgement judge(const Results& results, const ComputeReference& reference);

/// The metrics of findings that fail: to be measured again.
std::vector<std::size_t> suspects(const RateJudgement& judgement);
/// What of `first` fails in `again` too, and what was only noticed.
RateJudgement confirmed(const RateJudgement& first, const RateJudgement& again);

/// What was wrong, what was slow in both judgements, and of the job.
std::vector<Verdict> verdicts_of(const Results& results, const RateJudgement& judgement);

/// What else was seen of a slow rank, and of its peers.
Circumstances circumstances_of(const Results& results, const Slow& slow, std::size_t metric);

/// At most 110 columns: a line per metric.
std::string table_of(const Results& results);
/// The "compute" record of one rank and metric.
Json record_of(const RankResult& result, std::size_t metric);

}  // namespace shakedown::node
