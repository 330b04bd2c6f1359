// Whether a GPU is slower than it should be, compared with its peers or with a reference: pure
// functions of the rates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/verdict.hpp"

namespace shakedown::node {

/// Shares of the median below which a rate is noticed, and fails: as far from 1 as healthy GPUs
/// differ in that metric.
struct Limits {
  double notice = 0.93;
  double fail = 0.90;
};

/// Both must hold of a slow round: the ratio below the limit, and z = |x - median| / max(1.4826
/// MAD, 0.5 % of the median) above this. 1.4826 MAD is a normal sample's standard deviation.
struct PeerRule {
  double z = 5;
  double least_deviation = 0.005;
  double share = 0.6;      // of the rounds that must be slow
  std::size_t rounds = 5;  // fewer are no evidence
  std::size_t peers = 3;   // GPUs of one model; of two, either may be the slow one
};

/// rates[i][round] of GPU i of one model.
using Rates = std::vector<std::vector<double>>;

/// A GPU that is below the limit to be noticed.
struct Slow {
  std::size_t gpu = 0;
  bool fails = false;
  double ratio = 1;  // median over the rounds, to the median of the peers or of the reference
  double z = 0;      // the same
  std::size_t slow_rounds = 0;
  std::size_t rounds = 0;
};

/// Whether there are enough GPUs, and rounds, to compare.
bool comparable(const Rates& rates, const PeerRule& rule = {});
/// Whether in too few rounds more than half of the GPUs lie within limits.notice of one another:
/// then nobody knows which of them are slow. Of comparable rates.
bool divided(const Rates& rates, const Limits& limits, const PeerRule& rule = {});
/// "fp16: no majority of 4 devices agrees within 7 %: 560, 561, 670, 671 TFLOP/s". Of divided
/// rates.
std::string division_of(const std::string& name, const Rates& rates, const Limits& limits,
                        const std::string& unit);
/// Of comparable rates; of divided ones, those far from all groups (rule.z). Rates that are not
/// finite, or not above 0, are slow in every round.
std::vector<Slow> slow_among_peers(const Rates& rates, const Limits& limits,
                                   const PeerRule& rule = {});
/// Compared with the rates of a good machine of the same model, of at least one round.
std::vector<Slow> slow_by_reference(const Rates& rates, const std::vector<double>& reference,
                                    const Limits& limits, const PeerRule& rule = {});
/// Those of `first` that fail in `again` too: measured anew.
std::vector<Slow> confirmed(const std::vector<Slow>& first, const std::vector<Slow>& again);

/// What else was seen while the rate was measured, of this GPU and, usual, of what it is compared
/// with; kUnknown where it was not.
struct Circumstances {
  double clock_mhz, usual_clock_mhz;
  double temperature_c, usual_temperature_c;
  std::optional<std::uint64_t> throttle_reasons;
};
/// Whose matter a slow product is: a rate that is low with the clock, and a reason for it, is
/// explained by power, heat or a setting; one that is low at a normal clock is the chip's, and so
/// is one whose clock is unknown, until that is read.
struct Explanation {
  std::string cause;
  std::optional<Class> class_;
  std::string action;
};
Explanation explain(const Slow& slow, const Limits& limits, const Circumstances& seen);

}  // namespace shakedown::node
