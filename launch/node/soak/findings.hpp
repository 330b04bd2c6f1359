// From a soak's windows and mismatches to its verdicts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "launch/node/compute/rates.hpp"
#include "launch/node/soak/schedule.hpp"
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

/// Joules of all GPUs; of windows too short for the energy counter by the mean power. kUnknown
/// where neither is known of a window.
double energy_of(const std::vector<Window>& windows);

/// What a soak was to do, and what came of it as a whole.
struct JobFacts {
  std::vector<LoadKind> requested;
  std::vector<MemoryCoverage> memory = {};  // by rank
  std::vector<std::string> remarks = {};    // unknown_health()
  std::string stopped_by = "";              // a signal
  std::string device = "GPU";               // what each rank tests: or "rank"
  double minutes = 0;                       // that it took
  double minutes_requested = 0;
  std::string power = "";  // line_of(Power)
};

/// On the whole, with what it proves: without an error in T hours the rate is below 3 / T at 95 %,
/// the rule of three (exactly -ln 0.05 / T), and JobFacts::power. A kind of load that was requested
/// and of which nothing was checked is INCONCLUSIVE, never PASS, and so are memory that not every
/// pattern has covered, and a soak that a signal has stopped.
Verdict judge_job(const std::vector<Window>& windows, const std::vector<Verdict>& findings,
                  const JobFacts& facts);

/// The fields of a "soak_summary" record: what was checked, of which results/report makes the
/// statement, but for its power.
Json summary_of(const std::vector<Window>& windows, const std::vector<Tested>& tested);

/// "XIDs not known on rank 0: ...": what could not be watched of a GPU, and is no reason to doubt
/// what was computed.
std::vector<std::string> unknown_health(const std::vector<Window>& windows,
                                        const std::vector<RankIdentity>& ranks);

// What a soak gives the judge: the rates of its products, as `metric` lines.

/// One type's products on this rank, in all windows of steady products.
struct SoakedProduct {
  ProductSpec spec;
  std::string algorithm;
  ProductRates rates;
};

/// product/T/... as bin/compute_perf has them, with the condition manner "sustained": after seconds
/// of products without a pause, at the clock that power and heat leave. Wrong where one of them
/// was.
std::vector<Series> series_of(const std::vector<SoakedProduct>& products,
                              const std::vector<Window>& windows,
                              const std::vector<Incident>& incidents, int rank, BackendKind kind);

}  // namespace shakedown::node
