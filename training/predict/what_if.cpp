#include "training/predict/what_if.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/error.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

ComputeTime::ComputeTime(std::vector<BatchTime> measured) : measured_(std::move(measured)) {
  ENSURE(!measured_.empty(), "compute was measured");
  std::sort(measured_.begin(), measured_.end(),
            [](const BatchTime& a, const BatchTime& b) { return a.batch_size < b.batch_size; });
  int last = 0;
  for (const BatchTime& time : measured_) {
    ENSURE(time.batch_size > last && time.compute_ms > 0,
           "a batch has images, takes time, and is given once");
    last = time.batch_size;
  }
}

ComputeTime::Estimate ComputeTime::at(int batch_size) const {
  ENSURE(batch_size > 0, "a batch has images");
  const auto upper =
      std::lower_bound(measured_.begin(), measured_.end(), batch_size,
                       [](const BatchTime& time, int size) { return time.batch_size < size; });
  if (upper != measured_.end() && upper->batch_size == batch_size)
    return {upper->compute_ms, false};
  const bool outside = upper == measured_.begin() || upper == measured_.end();
  const BatchTime& nearest = upper == measured_.end() ? measured_.back() : *upper;
  const double in_proportion = nearest.compute_ms * batch_size / nearest.batch_size;
  if (measured_.size() == 1) return {in_proportion, true};
  const auto above = std::clamp(upper, measured_.begin() + 1, measured_.end() - 1);
  const auto below = above - 1;
  const double part = static_cast<double>(batch_size - below->batch_size) /
                      static_cast<double>(above->batch_size - below->batch_size);
  const double ms = std::lerp(below->compute_ms, above->compute_ms, part);
  // A line through two noisy times could end below 0.
  return {outside && ms <= 0 ? in_proportion : ms, outside};
}

namespace {

Exchange exchange_of(Pattern pattern, int ranks) {
  switch (pattern) {
    case Pattern::all_reduce: return ring_all_reduce(ranks);
    case Pattern::pass:
    case Pattern::shards: return ring_pass(ranks);
    case Pattern::star: return star_pass(ranks - 1);
    case Pattern::chain: return chain_pass(ranks);
  }
  throw InternalError("an unknown pattern");
}

/// Costs of the transfers of one micro-batch in a scenario. Bytes are in float32.
struct StepCosts {
  StepCosts(const MeasuredStep& measured, const ComputeTime& compute, const Scenario& s)
      : scenario(s),
        compute_ms(compute.at(s.batch_size).ms),
        gradients(measured.gradients),
        input_bytes(measured.input_bytes_per_image * s.batch_size),
        average_ms_per_byte(measured.average_ms_per_byte) {
    const double stretch = compute_ms / compute.at(measured.ready_batch_size).ms;
    backward_ms = measured.backward_ms * stretch;
    forward_ms = std::max(0.0, compute_ms - backward_ms);
    for (ReadyGradient& gradient : gradients) {
      gradient.ready_ms *= stretch;
      bytes += gradient.bytes;
    }
  }

  ExchangeTime time(const Transfer& t, Volume volume) const {
    const double factor = volume == Volume::gradients ? scenario.gradient_bytes_factor
                          : volume == Volume::weights ? scenario.weight_bytes_factor
                                                      : 1;
    return time_of(exchange_of(t.pattern, scenario.world_size),
                   t.by_collective() ? scenario.ring : scenario.star, factor);
  }
  double after_backward_ms(const Transfer& t, int pieces) const {
    return time(t, t.volume).ms((t.volume == Volume::inputs ? input_bytes : bytes) / pieces);
  }
  /// A server averages what the ranks that compute sent it; a single rank has nothing to average.
  double average_ms(const Transfer& t, int computing) const {
    if (t.volume != Volume::gradients || t.by_collective() || scenario.world_size == 1) return 0;
    const int servers = t.pattern == Pattern::shards ? scenario.world_size : 1;
    return average_ms_per_byte * bytes * scenario.gradient_bytes_factor * computing / servers;
  }
  /// Of a transfer that runs while the rank computes, if the scenario lets it.
  Overlap overlapped(const Transfer& t) const {
    const ExchangeTime own = time(t, t.volume);
    const Overlap overlap =
        t.pieces == Pieces::gathered_blocks
            ? overlap_gathered(in_blocks(gradients), forward_ms, backward_ms,
                               time(t, Volume::weights), own)
            : overlap_buckets(
                  t.pieces == Pieces::blocks
                      ? in_blocks(gradients)
                      : in_buckets(gradients, scenario.small_bucket_mb * kMebibyte,
                                   scenario.bucket_cap_mb * kMebibyte, scenario.small_bucket),
                  backward_ms, own);
    return scenario.overlap ? overlap : Overlap{0, overlap.hidden_ms + overlap.exposed_ms};
  }

  const Scenario& scenario;
  double compute_ms;
  double forward_ms = 0;
  double backward_ms = 0;
  std::vector<ReadyGradient> gradients;
  double bytes = 0;    // of all gradients, or weights
  double input_bytes;  // of one rank
  double average_ms_per_byte;
};

/// The transfers of an update. What a micro-batch leaves exposed is counted each time: that the
/// next forward might hide it is not. Partitions are a pipeline of two stages: pulls overlap the
/// next pushes on a full-duplex link (BytePS, Jiang et al. 2020).
Overlap communication(const StrategyEntry& entry, const StepCosts& costs) {
  Overlap sum;
  for (const Transfer& t : entry.transfers) {
    const Overlap one =
        t.overlaps() ? costs.overlapped(t) : Overlap{0, costs.after_backward_ms(t, 1)};
    const int times = t.each_micro_batch ? costs.scenario.accumulate : 1;
    sum.hidden_ms += times * one.hidden_ms;
    sum.exposed_ms +=
        times * one.exposed_ms + costs.average_ms(t, entry.computing(costs.scenario.world_size));
  }
  return sum;
}

/// Whether each rank has its share of the gradients, and updates that of the weights.
bool sharded(const StrategyEntry& entry) {
  return std::any_of(entry.transfers.begin(), entry.transfers.end(), [](const Transfer& t) {
    return t.pattern == Pattern::pass || t.pattern == Pattern::shards;
  });
}

}  // namespace

std::vector<std::string> predicted_strategies() {
  std::vector<std::string> names;
  for (const StrategyEntry& entry : strategies())
    if (entry.synchronous() && !entry.peers) names.emplace_back(entry.name);
  return names;
}

StepModel::StepModel(MeasuredStep measured)
    : measured_(std::move(measured)), compute_(measured_.compute) {
  ENSURE(measured_.backward_ms > 0 && measured_.ready_batch_size > 0, "backward was measured");
  ENSURE(measured_.optimizer_ms >= 0 && measured_.interference >= 0 &&
             measured_.average_ms_per_byte >= 0 && measured_.input_bytes_per_image >= 0,
         "measured figures are not negative");
  for (const ReadyGradient& gradient : measured_.gradients)
    ENSURE(gradient.bytes >= 0 && gradient.ready_ms >= 0, "measured figures are not negative");
}

Prediction StepModel::predict(const std::string& strategy, const Scenario& scenario) const {
  const StrategyEntry& entry = find_strategy(strategy);
  ENSURE(entry.synchronous(), "ranks have a common step");
  ENSURE(scenario.world_size >= entry.ranks.least, "the strategy has its ranks");
  ENSURE(scenario.accumulate >= 1, "a step has micro-batches");
  const StepCosts costs(measured_, compute_, scenario);
  const Overlap exchanged = communication(entry, costs);
  Prediction p;
  p.ranks_computing = entry.computing(scenario.world_size);
  p.compute_ms = scenario.accumulate * costs.compute_ms;
  p.hidden_ms = exchanged.hidden_ms;
  p.exposed_ms = exchanged.exposed_ms;
  p.interference_ms = measured_.interference * p.hidden_ms;
  p.optimizer_ms = measured_.optimizer_ms / (sharded(entry) ? scenario.world_size : 1);
  p.step_ms = p.compute_ms + p.exposed_ms + p.interference_ms + p.optimizer_ms;
  const double images = static_cast<double>(scenario.batch_size) * scenario.accumulate;
  p.images_per_s = 1e3 * images * p.ranks_computing / p.step_ms;
  const double single_per_s = 1e3 * images / (p.compute_ms + measured_.optimizer_ms);
  p.efficiency = p.images_per_s / (scenario.world_size * single_per_s);
  p.extrapolated = compute_.at(scenario.batch_size).extrapolated;
  return p;
}

}  // namespace shakedown::training
