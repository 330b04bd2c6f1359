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

// What a soak without errors proves.

/// The work that was checked, on all GPUs.
struct Work {
  double products = 0;
  double probes = 0;        // of single processors
  double memory_bytes = 0;  // read and verified
  double copied_bytes = 0;  // between host and device
  double link_bytes = 0;    // delivered by collectives
  double gpu_hours = 0;
  double self_compared = 0;  // of the products: with the same GPU's others alone
};

/// Events per GPU-hour that are excluded at 95 % where none was seen in this time: 3 / T, the rule
/// of three (exactly -ln 0.05 / T). Infinite for no time.
double rate_bound(double gpu_hours);

/// "0 wrong in 2.1e6 products, 9.8 PB of memory, 1.2 PB over links: rate below 12 per GPU-hour at
/// 95 %"; "2.1e6 products, of which 1.6e6 were compared only with themselves". With wrong
/// operations there is no bound to give. `device`: "GPU" or "rank".
std::string statement_of(const Work& work, double wrong, const std::string& device = "GPU");

/// "9.8 PB", decimal units.
std::string readable_decimal_bytes(double bytes);

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

// What a soak's windows show of the GPUs' health: throttling, counted errors, XIDs.

void judge_health(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts);

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

/// product/T/... as bin/compute_perf has them, with the condition manner "checked": the products
/// are compared all the while. Wrong where one of them was.
std::vector<Series> series_of(const std::vector<SoakedProduct>& products,
                              const std::vector<Window>& windows,
                              const std::vector<Incident>& incidents, int rank, BackendKind kind);

}  // namespace shakedown::node
