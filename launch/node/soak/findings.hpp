// From a soak's windows and mismatches to its verdicts.
#pragma once

#include <string>
#include <vector>

#include "common/verdict.hpp"
#include "launch/node/soak/statement.hpp"
#include "launch/node/soak/window.hpp"

namespace shakedown::node {

/// A mismatch with what the GPU was like in its window.
struct Incident {
  int rank = 0;
  int window = 0;
  Mismatch mismatch;
  std::string capsule;  // its path; empty: none
  double temperature_c = kUnknown, sm_clock_mhz = kUnknown, power_w = kUnknown;
};

/// Who the ranks are.
struct RankIdentity {
  std::string host;
  std::string uuid;    // empty on cpu
  std::string serial;  // empty: not known
  std::string model;
};

/// The fields of a "mismatch" record.
Json record_of(const Incident& incident, const RankIdentity& identity);

/// How GPUs are compared by their rate of products.
struct SlowRule {
  double ratio = 0.90;  // of the median, below which a rate is low
  double z = 5;         // robust: (median - rate) / max(1.4826 MAD, 0.5 % of the median)
  double share = 0.6;   // of the windows in which it must be low
  int windows = 5;      // at least
};

/// A finding on every rank that was wrong, slow or throttled; nothing on those that were not.
std::vector<Verdict> judge_soak(const std::vector<Window>& windows,
                                const std::vector<Incident>& incidents,
                                const std::vector<RankIdentity>& ranks, const SlowRule& rule);

/// What was checked in all windows.
Work work_of(const std::vector<Window>& windows);
/// Joules of all GPUs; kUnknown where a window of one is.
double energy_of(const std::vector<Window>& windows);
/// Median over windows and ranks; kUnknown where there was no comparison.
double checked_over_unchecked(const std::vector<Window>& windows);

/// On the whole. A kind of load that was requested and of which nothing was checked is
/// INCONCLUSIVE, never PASS.
Verdict judge_job(const std::vector<Window>& windows, const std::vector<LoadKind>& requested,
                  const std::vector<Verdict>& findings, const std::string& stopped_by);

}  // namespace shakedown::node
