// From a soak's windows and mismatches to its verdicts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/verdict.hpp"
#include "launch/node/soak/rank_identity.hpp"
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
  std::string no_capsule = "";  // why, and how to repeat it
};

/// The fields of a "mismatch" record.
Json record_of(const Incident& incident, const RankIdentity& identity);

/// A finding on every rank that was wrong, throttled or had errors counted; nothing on those that
/// were not. What was slow is the judge's: common/judge.
std::vector<Verdict> judge_soak(const std::vector<Window>& windows,
                                const std::vector<Incident>& incidents,
                                const std::vector<RankIdentity>& ranks);

/// What was checked in all windows.
Work work_of(const std::vector<Window>& windows);
/// Joules of all GPUs; of windows too short for the energy counter by the mean power. kUnknown
/// where neither is known of a window.
double energy_of(const std::vector<Window>& windows);

/// Rates of checked products over those of unchecked ones: medians over windows and ranks. Types
/// without a comparison are left out.
struct CheckedRates {
  std::map<ProductType, double> by_type;
  double all = kUnknown;  // median of the types
};
CheckedRates checked_rates(const std::vector<Window>& windows);
/// "checked products run at 97.6 % of the rate of unchecked ones (fp32 99.9, bf16 97.5)". Empty
/// where there was no comparison.
std::string text_of(const CheckedRates& rates);

/// What a soak was to do, and what came of it as a whole.
struct JobFacts {
  std::vector<LoadKind> requested;
  std::vector<MemoryCoverage> memory = {};  // by rank
  std::vector<std::string> remarks = {};    // unknown_health()
  std::string stopped_by = "";              // a signal
  std::string device = "GPU";               // what each rank tests: or "rank"
  double minutes = 0;                       // that it took
  double minutes_requested = 0;
};

/// On the whole. A kind of load that was requested and of which nothing was checked is
/// INCONCLUSIVE, never PASS, and so are memory that not every pattern has covered, and a soak that
/// a signal has stopped.
Verdict judge_job(const std::vector<Window>& windows, const std::vector<Verdict>& findings,
                  const JobFacts& facts);

/// The fields of a "soak_summary" record.
Json summary_of(const std::vector<Window>& windows, const std::vector<MemoryCoverage>& memory);

}  // namespace shakedown::node
