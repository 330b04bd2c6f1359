// What all ranks measured, as every rank knows it; and what it means.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "common/verdict.hpp"
#include "launch/node/compute/compute_reference.hpp"
#include "launch/node/compute/judge.hpp"
#include "launch/node/compute/rate_tests.hpp"

namespace shakedown::node {

/// One rank's device and series; all ranks have series of the same metrics in the same order.
struct RankResult {
  std::string host, gpu, model;  // gpu: its UUID; empty on the cpu backend
  std::vector<Series> series;
  std::string shares = {};  // of a cpu: "3 ranks on 2 cores of n1", which is no measure of a core
  std::string in_use = {};  // of a GPU: "in use by other processes: pid 99"; empty: by none known

  double rate(std::size_t metric) const;  // median of the rounds
};
using Results = std::vector<RankResult>;

/// The median of a reading over the rounds in which it is known; else kUnknown.
double typical(const Series& series, double GpuWindow::*reading);
/// All that were seen in any round.
std::optional<std::uint64_t> throttle_reasons_of(const Series& series);

/// RankResult::shares of each rank; `cores`: those that it may run on, none of a GPU's.
std::vector<std::string> shared_cores(const std::vector<std::string>& hosts,
                                      const std::vector<std::vector<int>>& cores);
/// Collective.
Results gather(const MpiSession& session, const DeviceIdentity& device,
               const std::vector<std::unique_ptr<RateTest>>& tests);

struct SlowFinding {
  std::size_t metric = 0;
  Slow slow;  // slow.gpu is a rank
  bool by_reference = false;
  Circumstances seen{};
  double rate = 0;    // where it was slow
  bool once = false;  // it failed in one of two measurements, which fails nobody
};
struct RateJudgement {
  std::vector<SlowFinding> findings;
  std::vector<std::string> not_judged;  // why, by model; empty: every rate was compared
};
RateJudgement judge(const Results& results, const ComputeReference& reference);

/// The metrics of findings that fail: to be measured again.
std::vector<std::size_t> suspects(const RateJudgement& judgement);
/// What fails in both; what fails in one of them, or was only noticed, without failing.
RateJudgement confirmed(const RateJudgement& first, const RateJudgement& again);

/// What was wrong, what was slow, and of the job.
std::vector<Verdict> verdicts_of(const Results& results, const RateJudgement& judgement);

/// At most 110 columns: a line per metric.
std::string table_of(const Results& results);
/// The "compute_round" record of a metric's newest sample, on all ranks. Collective.
Json round_record_of(const MpiSession& session, const Series& series);
/// The "compute" record of one rank and metric.
Json record_of(const RankResult& result, std::size_t metric);

}  // namespace shakedown::node
