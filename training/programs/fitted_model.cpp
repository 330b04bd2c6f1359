#include "training/programs/fitted_model.hpp"

#include <algorithm>
#include <cmath>

#include "common/statistics.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {
namespace {

/// 0 where no round has it.
double interference_median(const Result& result) {
  std::vector<double> values;
  for (const Round& round : result.rounds)
    if (round.breakdown.interference_ms) values.push_back(*round.breakdown.interference_ms);
  return values.empty() ? 0 : median_of(values);
}

/// Extra compute time per ms of hidden exchange: of ddp compared with the base, if it was measured
/// and hides any.
double interference_of(const Group& group, const Result& base) {
  for (const Result* result : group) {
    if (result->configuration.strategy() != "ddp" ||
        result->configuration.ranks != base.configuration.ranks ||
        batch_of(*result) != batch_of(base))
      continue;
    const double hidden = median_over_rounds(*result, &Breakdown::hidden_comm_ms);
    if (hidden > 0) return std::max(0.0, interference_median(*result) / hidden);
  }
  return 0;
}

/// Sent for a byte of float32 gradient. Next to `none` it is ddp that is predicted.
double gradient_bytes_factor(const StepOptions& options, BackendKind backend) {
  StrategyOptions o = options.strategy;
  if (o.strategy == "none") o.strategy = "ddp";
  const DataType computed = compute_type(parse_precision(options.model.precision, backend));
  return static_cast<double>(size_of(exchanged_type(o, computed))) / sizeof(float);
}

}  // namespace

double median_over_rounds(const Result& result, double Breakdown::*term) {
  std::vector<double> values;
  for (const Round& round : result.rounds) values.push_back(round.breakdown.*term);
  return median_of(values);
}
double step_ms_median(const Result& result) {
  std::vector<double> values;
  for (const Round& round : result.rounds) values.push_back(round.throughput.step_ms_p50);
  return median_of(values);
}

const StepOptions& options_of(const Result& result) { return result.configuration.options; }
int batch_of(const Result& result) { return result.identity.batch_size.value(); }

std::vector<Group> groups_of(const std::vector<Result>& results) {
  std::vector<Group> groups;
  for (const Result& result : results) {
    if (!result.measured() || !result.configuration.setting.empty()) continue;
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& known) {
      const ModelOptions& model = options_of(*known.front()).model;
      return model.model == options_of(result).model.model &&
             model.precision == options_of(result).model.precision;
    });
    if (group == groups.end())
      groups.push_back({&result});
    else
      group->push_back(&result);
  }
  return groups;
}

std::vector<const Result*> bases_of(const Group& group) {
  std::vector<const Result*> bases;
  int most = 2;  // one rank exchanges nothing
  for (const Result* result : group) most = std::max(most, result->configuration.ranks);
  for (const Result* result : group)
    if (result->configuration.strategy() == "none" && result->configuration.ranks == most &&
        result->inputs && !result->inputs->links.ring.empty())
      bases.push_back(result);
  return bases;
}

StepModel model_of(const Group& group, const std::vector<const Result*>& bases,
                   const Result& base) {
  MeasuredStep measured;
  for (const Result* other : bases)
    measured.compute.push_back(
        {batch_of(*other),
         median_over_rounds(*other, &Breakdown::compute_ms) / options_of(*other).accumulate});
  measured.gradients = base.inputs->gradients;
  measured.backward_ms = base.inputs->backward_ms;
  measured.ready_batch_size = batch_of(base);
  measured.optimizer_ms = median_over_rounds(base, &Breakdown::optimizer_ms);
  measured.interference = interference_of(group, base);
  measured.average_ms_per_byte = 1e3 * base.inputs->links.average_s_per_byte;
  measured.input_bytes_per_image = base.inputs->input_bytes_per_image;
  return StepModel(std::move(measured));
}

Links fit_links(const Result& base) {
  const int ranks = base.configuration.ranks;
  return {fit_link(ring_all_reduce(ranks), base.inputs->links.ring),
          fit_link(star_pass(ranks - 1), base.inputs->links.star)};
}

Scenario scenario_of(const Result& result, const ModelInputs& inputs, const Links& links,
                     BackendKind backend) {
  const StepOptions& o = options_of(result);
  Scenario scenario;
  scenario.world_size = result.configuration.ranks;
  scenario.batch_size = batch_of(result);
  scenario.accumulate = o.accumulate;
  scenario.ring = links.ring.link;
  scenario.star = links.star.link;
  scenario.small_bucket_mb = o.strategy.small_bucket_mb;
  scenario.bucket_cap_mb = o.strategy.bucket_cap_mb;
  scenario.small_bucket = small_bucket(o.strategy);
  scenario.gradient_bytes_factor = gradient_bytes_factor(o, backend);
  scenario.weight_bytes_factor = inputs.sent_bytes_factor;
  scenario.overlap = backend == BackendKind::gpu && !o.strategy.no_overlap;
  return scenario;
}

bool comparable_with_none(const Result& result, BackendKind backend) {
  return backend == BackendKind::gpu ||
         !find_strategy(result.configuration.strategy()).ranks.first_serves;
}

bool model_describes(const Result& result) {
  const StrategyOptions& o = options_of(result).strategy;
  const auto known = predicted_strategies();
  if (std::find(known.begin(), known.end(), o.strategy) == known.end()) return false;
  return o.strategy != "ddp" || o.norm_stats != "broadcast";
}

}  // namespace shakedown::training
