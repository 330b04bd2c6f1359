#include "training/predict/what_if.hpp"

#include <fmt/format.h>

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

/// What a strategy's formula is made of: one micro-batch in a scenario. Bytes are in float32.
struct StepCosts {
  StepCosts(const MeasuredStep& measured, const ComputeTime& compute, const Scenario& s)
      : scenario(s),
        ranks(s.world_size),
        others(s.world_size - 1),
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

  ExchangeTime gradient_time(const Exchange& exchange) const {
    return time_of(exchange, scenario.ring, scenario.gradient_bytes_factor);
  }
  ExchangeTime weight_time(const Exchange& exchange) const {
    return time_of(exchange, scenario.ring, scenario.weight_bytes_factor);
  }
  // Times of sends and receives.
  double gradients_sent_ms(const Exchange& exchange, int partitions = 1) const {
    return time_of(exchange, scenario.star, scenario.gradient_bytes_factor).ms(bytes / partitions);
  }
  double weights_sent_ms(const Exchange& exchange, int partitions = 1) const {
    return time_of(exchange, scenario.star, scenario.weight_bytes_factor).ms(bytes / partitions);
  }
  double inputs_sent_ms() const {
    return time_of(star_pass(others), scenario.star).ms(input_bytes);
  }
  /// A rank averages the gradients of `of_ranks` ranks; a single rank has them already.
  double average_ms(int of_ranks) const {
    return others == 0 ? 0
                       : average_ms_per_byte * bytes * scenario.gradient_bytes_factor * of_ranks;
  }

  Overlap bucketed(const Exchange& exchange) const {
    return next_to_compute(
        overlap_buckets(in_buckets(gradients, scenario.first_bucket_mb * kMebibyte,
                                   scenario.bucket_cap_mb * kMebibyte, scenario.small_bucket),
                        backward_ms, gradient_time(exchange)));
  }
  Overlap by_block(const Exchange& exchange) const {
    return next_to_compute(
        overlap_buckets(in_blocks(gradients), backward_ms, gradient_time(exchange)));
  }
  Overlap gathered_by_block(const Exchange& exchange) const {
    return next_to_compute(overlap_gathered(in_blocks(gradients), forward_ms, backward_ms,
                                            weight_time(exchange), gradient_time(exchange)));
  }
  Overlap next_to_compute(const Overlap& overlap) const {
    if (!scenario.overlap) return {0, overlap.hidden_ms + overlap.exposed_ms};
    return overlap;
  }

  const Scenario& scenario;
  int ranks;
  int others;
  double compute_ms;
  double forward_ms = 0;
  double backward_ms = 0;
  std::vector<ReadyGradient> gradients;
  double bytes = 0;    // of all gradients, or weights
  double input_bytes;  // of one rank
  double average_ms_per_byte;
};

Overlap none(const StepCosts&) { return {}; }

Overlap ddp(const StepCosts& c) { return c.bucketed(ring_all_reduce(c.ranks)); }

Overlap all_reduce(const StepCosts& c) {
  return {0, c.gradient_time(ring_all_reduce(c.ranks)).ms(c.bytes)};
}

/// Push and pull of a parameter server (Li et al. 2014), in partitions that follow one another:
/// pulls overlap the next pushes on a full-duplex link (BytePS, Jiang et al. 2020). A pipeline of
/// two stages, which differ where weights and gradients do.
Overlap parameter_server(const StepCosts& c) {
  const int partitions = c.scenario.partitions;
  const double push_ms = c.gradients_sent_ms(star_pass(c.others), partitions);
  const double pull_ms = c.weights_sent_ms(star_pass(c.others), partitions);
  return {0, push_ms + pull_ms + (partitions - 1) * std::max(push_ms, pull_ms) +
                 c.average_ms(c.others)};
}

/// Every rank sends each other one its shard, averages its own, and sends it to all.
Overlap parameter_server_sharded(const StepCosts& c) {
  const Exchange pass = ring_pass(c.ranks);
  return {0, c.gradients_sent_ms(pass) + c.average_ms(c.ranks) / c.ranks + c.weights_sent_ms(pass)};
}

/// Gradients are scattered in buckets, weights gathered after the update.
Overlap zero1(const StepCosts& c) {
  const Exchange pass = ring_pass(c.ranks);
  Overlap overlap = c.bucketed(pass);
  overlap.exposed_ms += c.weight_time(pass).ms(c.bytes);
  return overlap;
}

/// ZeRO (Rajbhandari et al. 2020): without whole gradients, every micro-batch's are scattered,
/// block by block. What they leave exposed is counted each time: that the next forward might hide
/// it is not.
Overlap zero2(const StepCosts& c) {
  const Exchange pass = ring_pass(c.ranks);
  const Overlap scatter = c.by_block(pass);
  const int times = c.scenario.accumulate;
  return {times * scatter.hidden_ms, times * scatter.exposed_ms + c.weight_time(pass).ms(c.bytes)};
}

Overlap fsdp(const StepCosts& c) {
  const Overlap once = c.gathered_by_block(ring_pass(c.ranks));
  const int times = c.scenario.accumulate;
  return {times * once.hidden_ms, times * once.exposed_ms};
}

/// Rank 0 sends every micro-batch's inputs, receives and averages the gradients, and broadcasts the
/// weights along a chain.
Overlap data_parallel(const StepCosts& c) {
  return {0, c.scenario.accumulate * c.inputs_sent_ms() + c.gradients_sent_ms(star_pass(c.others)) +
                 c.average_ms(c.ranks) + c.weights_sent_ms(chain_pass(c.ranks))};
}

struct StrategyModel {
  const char* name;
  bool sharded_update;  // each rank updates its part
  Overlap (*communication)(const StepCosts& costs);
};

constexpr StrategyModel kStrategies[] = {
    {"none", false, none},
    {"all-reduce", false, all_reduce},
    {"ddp", false, ddp},
    {"parameter-server", false, parameter_server},
    {"parameter-server-sharded", true, parameter_server_sharded},
    {"data-parallel", false, data_parallel},
    {"zero1", true, zero1},
    {"zero2", true, zero2},
    {"fsdp", true, fsdp},
};

const StrategyModel& find_model(const std::string& name) {
  for (const StrategyModel& model : kStrategies)
    if (name == model.name) return model;
  throw InternalError(fmt::format("strategy {}: there is no model of it", name));
}

}  // namespace

std::vector<std::string> predicted_strategies() {
  std::vector<std::string> names;
  for (const StrategyModel& model : kStrategies) names.emplace_back(model.name);
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
  const StrategyModel& model = find_model(strategy);
  const StrategyEntry& entry = find_strategy(strategy);
  ENSURE(scenario.world_size >= entry.ranks.least, "the strategy has its ranks");
  ENSURE(scenario.accumulate >= 1 && scenario.partitions >= 1, "a step has micro-batches");
  const StepCosts costs(measured_, compute_, scenario);
  const Overlap communication = model.communication(costs);
  Prediction p;
  p.ranks_computing = entry.computing(scenario.world_size);
  p.compute_ms = scenario.accumulate * costs.compute_ms;
  p.hidden_ms = communication.hidden_ms;
  p.exposed_ms = communication.exposed_ms;
  p.interference_ms = measured_.interference * p.hidden_ms;
  p.optimizer_ms = measured_.optimizer_ms / (model.sharded_update ? scenario.world_size : 1);
  p.step_ms = p.compute_ms + p.exposed_ms + p.interference_ms + p.optimizer_ms;
  const double images = static_cast<double>(scenario.batch_size) * scenario.accumulate;
  p.images_per_s = 1e3 * images * p.ranks_computing / p.step_ms;
  const double single_per_s = 1e3 * images / (p.compute_ms + measured_.optimizer_ms);
  p.efficiency = p.images_per_s / (scenario.world_size * single_per_s);
  p.extrapolated = compute_.at(scenario.batch_size).extrapolated;
  return p;
}

}  // namespace shakedown::training
