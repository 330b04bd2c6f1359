// From a soak's windows and mismatches to its verdicts.
#pragma once

#include <string>
#include <vector>

#include "common/verdict.hpp"
#include "launch/node/compute/judge.hpp"
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

/// A finding on every rank that was wrong, slow, throttled or had errors counted; nothing on those
/// that were not. The rates of products of GPUs of one model are compared, each steady window being
/// a round: rounds are interleaved with other loads for as long as the soak lasts.
std::vector<Verdict> judge_soak(const std::vector<Window>& windows,
                                const std::vector<Incident>& incidents,
                                const std::vector<RankIdentity>& ranks, const Limits& limits,
                                const PeerRule& rule);

/// What was checked in all windows.
Work work_of(const std::vector<Window>& windows);
/// Joules of all GPUs; kUnknown where a window of one is.
double energy_of(const std::vector<Window>& windows);
/// "checked products run at 97.6 % of the rate of unchecked ones (fp32 99.9, bf16 97.5)": medians
/// over windows and ranks. Empty where there was no comparison.
std::string rates_text(const std::vector<Window>& windows, const std::vector<ProductType>& types);

/// On the whole. A kind of load that was requested and of which nothing was checked is
/// INCONCLUSIVE, never PASS. `device`: what each rank tests, "GPU" or "rank".
Verdict judge_job(const std::vector<Window>& windows, const std::vector<LoadKind>& requested,
                  const std::vector<Verdict>& findings, const std::string& stopped_by,
                  const std::string& device = "GPU");

}  // namespace shakedown::node
