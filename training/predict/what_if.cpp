#include "training/predict/what_if.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/error.hpp"

namespace shakedown::training {

ComputeTime::ComputeTime(std::vector<BatchTime> measured) : measured_(std::move(measured)) {
  ENSURE(!measured_.empty(), "compute was measured");
  std::sort(measured_.begin(), measured_.end(),
            [](const BatchTime& a, const BatchTime& b) { return a.batch_size < b.batch_size; });
  std::vector<Point> points;
  for (const BatchTime& time : measured_) {
    ENSURE(time.batch_size > (points.empty() ? 0 : points.back().x) && time.compute_ms > 0,
           "a batch has images, takes time, and is given once");
    points.push_back({static_cast<double>(time.batch_size), time.compute_ms});
  }
  if (points.size() > 1) {
    line_ = fit_affine(points);
  } else {
    line_.slope = points[0].y / points[0].x;
  }
}

ComputeTime::Estimate ComputeTime::at(int batch_size) const {
  ENSURE(batch_size > 0, "a batch has images");
  const auto above = std::find_if(measured_.begin(), measured_.end(), [&](const BatchTime& time) {
    return time.batch_size >= batch_size;
  });
  if (above != measured_.end() && above->batch_size == batch_size)
    return {above->compute_ms, false};
  if (above == measured_.begin() || above == measured_.end()) {
    const BatchTime& nearest = above == measured_.end() ? measured_.back() : measured_.front();
    return {nearest.compute_ms * line_.at(batch_size) / line_.at(nearest.batch_size), true};
  }
  const BatchTime& below = *std::prev(above);
  const double part = static_cast<double>(batch_size - below.batch_size) /
                      static_cast<double>(above->batch_size - below.batch_size);
  return {std::lerp(below.compute_ms, above->compute_ms, part), false};
}

namespace {

struct Communication {
  double hidden_ms = 0;
  double exposed_ms = 0;
};

/// What the strategies' formulas are made of: one micro-batch of a scenario.
struct Exchanges {
  Exchanges(const StepModel& model, const Scenario& scenario)
      : scenario(scenario),
        gradients(model.gradients(scenario)),
        backward_ms(model.backward_ms(scenario)),
        forward_ms(std::max(0.0, model.compute_ms(scenario) - backward_ms)),
        others(scenario.world_size - 1),
        input_bytes(model.measured().input_bytes_per_image * scenario.batch_size) {
    for (const ReadyGradient& gradient : gradients) bytes += gradient.bytes;
  }

  ExchangeTime gradient_time(const Exchange& exchange) const {
    return time_of(exchange, scenario.ring, scenario.gradient_bytes_factor);
  }
  ExchangeTime weight_time(const Exchange& exchange) const {
    return time_of(exchange, scenario.ring, scenario.weight_bytes_factor);
  }
  double star_ms(double sent_bytes) const {
    return time_of(star_pass(others), scenario.star).ms(sent_bytes);
  }
  Communication bucketed(const Exchange& exchange) const {
    return beside_compute(capped_plan(gradients, scenario.first_bucket_mb * kMebibyte,
                                      scenario.bucket_cap_mb * kMebibyte, backward_ms,
                                      gradient_time(exchange), scenario.small_bucket)
                              .overlap);
  }
  /// Each block's gradients on their own.
  Communication by_block(const Exchange& exchange) const {
    return beside_compute(overlap_buckets(group(gradients, block_ends(gradients)), backward_ms,
                                          gradient_time(exchange)));
  }
  Communication beside_compute(const Overlap& overlap) const {
    if (!scenario.overlap) return {0, overlap.hidden_ms + overlap.exposed_ms};
    return {overlap.hidden_ms, overlap.exposed_ms};
  }

  const Scenario& scenario;
  std::vector<ReadyGradient> gradients;
  double backward_ms;
  double forward_ms;
  int others;          // ranks but this one
  double input_bytes;  // of one rank's micro-batch
  double bytes = 0;    // of all gradients or weights, in float32
};

Communication none(const Exchanges&) { return {}; }

Communication ddp(const Exchanges& x) { return x.bucketed(ring_all_reduce(x.scenario.world_size)); }

Communication all_reduce(const Exchanges& x) {
  return {0, x.gradient_time(ring_all_reduce(x.scenario.world_size)).ms(x.bytes)};
}

/// Push and pull of a parameter server (Li et al. 2014), in partitions that follow one another:
/// pulls overlap the next pushes on a full-duplex link (BytePS, Jiang et al. 2020). A pipeline of
/// two stages, which differ where weights and gradients do.
Communication parameter_server(const Exchanges& x) {
  const Scenario& s = x.scenario;
  const double push_ms = x.star_ms(x.bytes * s.gradient_bytes_factor / s.partitions);
  const double pull_ms = x.star_ms(x.bytes * s.weight_bytes_factor / s.partitions);
  return {0, push_ms + pull_ms + (s.partitions - 1) * std::max(push_ms, pull_ms)};
}

/// Also where shards travel directly: every rank's link then carries the same bytes and messages.
Communication scatter_then_gather(const Exchanges& x) {
  const Exchange pass = ring_pass(x.scenario.world_size);
  return {0, x.gradient_time(pass).ms(x.bytes) + x.weight_time(pass).ms(x.bytes)};
}

/// Gradients are scattered in buckets, weights gathered after the update.
Communication zero1(const Exchanges& x) {
  const Exchange pass = ring_pass(x.scenario.world_size);
  const Communication scatter = x.bucketed(pass);
  return {scatter.hidden_ms, scatter.exposed_ms + x.weight_time(pass).ms(x.bytes)};
}

/// ZeRO (Rajbhandari et al. 2020): without whole gradients, every micro-batch's are scattered,
/// block by block. What they leave exposed is counted each time: that the next forward might hide
/// it is not.
Communication zero2(const Exchanges& x) {
  const Exchange pass = ring_pass(x.scenario.world_size);
  const Communication scatter = x.by_block(pass);
  const int times = x.scenario.accumulate;
  return {times * scatter.hidden_ms, times * scatter.exposed_ms + x.weight_time(pass).ms(x.bytes)};
}

Communication fsdp(const Exchanges& x) {
  const Exchange pass = ring_pass(x.scenario.world_size);
  const Overlap overlap =
      overlap_gathered(group(x.gradients, block_ends(x.gradients)), x.forward_ms, x.backward_ms,
                       x.weight_time(pass), x.gradient_time(pass));
  const Communication once = x.beside_compute(overlap);
  const int times = x.scenario.accumulate;
  return {times * once.hidden_ms, times * once.exposed_ms};
}

/// Rank 0 sends every micro-batch's inputs, broadcasts the weights along a chain, and receives the
/// gradients.
Communication data_parallel(const Exchanges& x) {
  const Scenario& s = x.scenario;
  const Exchange chain{static_cast<double>(x.others), x.others > 0 ? 1.0 : 0.0};
  return {0, s.accumulate * x.star_ms(x.input_bytes) + x.weight_time(chain).ms(x.bytes) +
                 x.star_ms(x.bytes * s.gradient_bytes_factor)};
}

struct StrategyModel {
  const char* name;
  int servers;          // ranks that do not compute
  bool sharded_update;  // each rank updates its part
  Communication (*communication)(const Exchanges& exchanges);
};

constexpr StrategyModel kStrategies[] = {
    {"none", 0, false, none},
    {"all-reduce", 0, false, all_reduce},
    {"ddp", 0, false, ddp},
    {"parameter-server", 1, false, parameter_server},
    {"parameter-server-sharded", 0, true, scatter_then_gather},
    {"data-parallel", 0, false, data_parallel},
    {"zero1", 0, true, zero1},
    {"zero2", 0, true, zero2},
    {"fsdp", 0, true, fsdp},
};

const StrategyModel& find_model(const std::string& name) {
  for (const StrategyModel& model : kStrategies) {
    if (name == model.name) return model;
  }
  throw UsageError(fmt::format("strategy {}: there is no model of it", name));
}

}  // namespace

std::vector<std::string> predicted_strategies() {
  std::vector<std::string> names;
  for (const StrategyModel& model : kStrategies) names.emplace_back(model.name);
  return names;
}

bool runs_on(const std::string& strategy, int world_size) {
  return world_size > find_model(strategy).servers;
}

StepModel::StepModel(MeasuredStep measured)
    : measured_(std::move(measured)), compute_(measured_.compute) {
  ENSURE(measured_.backward_ms > 0 && measured_.ready_batch_size > 0, "backward was measured");
  ENSURE(measured_.optimizer_ms >= 0 && measured_.interference >= 0 &&
             measured_.input_bytes_per_image >= 0,
         "measured figures are not negative");
  for (const ReadyGradient& gradient : measured_.gradients) {
    ENSURE(gradient.bytes >= 0 && gradient.ready_ms >= 0, "measured figures are not negative");
  }
}

double StepModel::compute_ms(const Scenario& scenario) const {
  return compute_.at(scenario.batch_size).ms / scenario.compute_speedup;
}

double StepModel::stretch(const Scenario& scenario) const {
  return compute_ms(scenario) / compute_.at(measured_.ready_batch_size).ms;
}

double StepModel::backward_ms(const Scenario& scenario) const {
  return measured_.backward_ms * stretch(scenario);
}

std::vector<ReadyGradient> StepModel::gradients(const Scenario& scenario) const {
  std::vector<ReadyGradient> gradients = measured_.gradients;
  for (ReadyGradient& gradient : gradients) gradient.ready_ms *= stretch(scenario);
  return gradients;
}

Prediction StepModel::predict(const std::string& strategy, const Scenario& scenario) const {
  const StrategyModel& model = find_model(strategy);
  if (!runs_on(strategy, scenario.world_size)) {
    throw UsageError(fmt::format("strategy {} needs at least {} ranks, not {}", strategy,
                                 model.servers + 1, scenario.world_size));
  }
  ENSURE(scenario.accumulate >= 1 && scenario.partitions >= 1 && scenario.compute_speedup > 0,
         "a step has micro-batches");
  const Communication communication = model.communication(Exchanges(*this, scenario));
  Prediction p;
  p.ranks_computing = scenario.world_size - model.servers;
  p.compute_ms = scenario.accumulate * compute_ms(scenario);
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
