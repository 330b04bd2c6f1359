#include "training/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/progress.hpp"
#include "common/statistics.hpp"
#include "resnet/precision.hpp"
#include "training/advice.hpp"
#include "training/comparison.hpp"
#include "training/comparison_table.hpp"
#include "training/text_table.hpp"

namespace shakedown {
namespace {

constexpr double kMebibyte = 1 << 20;
constexpr double kGigabyte = 1e9;
constexpr int kTimesRanks = 8;  // as many times the measured ranks are told
constexpr std::size_t kMostAdvice = 8;
constexpr double kTie = 0.0005;

/// Median over the rounds of a breakdown's term.
double term(const Result& result, const char* key) {
  std::vector<double> values;
  for (const Json& breakdown : result.breakdowns)
    if (breakdown.contains(key)) values.push_back(breakdown.at(key).get<double>());
  return values.empty() ? 0 : median_of(values);
}
double step_value(const Result& result, const char* key) {
  std::vector<double> values;
  for (const Json& step : result.steps) values.push_back(step.at(key).get<double>());
  return median_of(values);
}

const TrainOptions& options_of(const Result& result) { return result.configuration.options; }
int batch_of(const Result& result) { return result.identity.at("batch_size").get<int>(); }

/// Results of one model and precision; none of settings, which the model does not describe.
using Group = std::vector<const Result*>;

std::vector<Group> groups_of(const std::vector<Result>& results) {
  std::vector<Group> groups;
  for (const Result& result : results) {
    if (!result.measured() || !result.configuration.setting.empty()) continue;
    const auto same = [&](const Group& group) {
      const ModelOptions& known = options_of(*group.front()).model;
      return known.model == options_of(result).model.model &&
             known.precision == options_of(result).model.precision;
    };
    const auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end())
      groups.push_back({&result});
    else
      group->push_back(&result);
  }
  return groups;
}

/// `none` on the most ranks, of each batch.
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

/// By how much computing slows for a ms of hidden exchange: of ddp beside the base, if it was
/// measured and hides any.
double interference_beside(const Group& group, const Result& base) {
  for (const Result* result : group) {
    if (result->configuration.strategy() != "ddp" ||
        result->configuration.ranks != base.configuration.ranks ||
        batch_of(*result) != batch_of(base))
      continue;
    const double hidden = term(*result, "hidden_comm_ms");
    if (hidden > 0) return std::max(0.0, term(*result, "interference_ms") / hidden);
  }
  return 0;
}

StepModel model_of(const Group& group, const std::vector<const Result*>& bases,
                   const Result& base) {
  MeasuredStep measured;
  for (const Result* other : bases)
    measured.compute.push_back(
        {batch_of(*other), term(*other, "compute_ms") / options_of(*other).accumulate});
  measured.gradients = base.inputs->gradients;
  measured.backward_ms = base.inputs->backward_ms;
  measured.ready_batch_size = batch_of(base);
  measured.optimizer_ms = term(base, "optimizer_ms");
  measured.interference = interference_beside(group, base);
  measured.input_bytes_per_image = base.inputs->input_bytes_per_image;
  return StepModel(std::move(measured));
}

struct Links {
  LinkFit ring, star;
};
Links fit(const Result& base) {
  const int ranks = base.configuration.ranks;
  return {fit_link(ring_all_reduce(ranks), base.inputs->links.ring),
          fit_link(star_pass(ranks - 1), base.inputs->links.star)};
}

double worst(const LinkFit& fit) {
  double error = 0;
  for (std::size_t i = 0; i < fit.errors.size(); ++i)
    if (fit.outlier != i) error = std::max(error, std::abs(fit.errors[i]));
  return error;
}

/// Sent for a byte of float32 gradient. Beside `none` it is ddp that is predicted.
double gradient_bytes_factor(const TrainOptions& options, BackendKind backend) {
  StrategyOptions o = options.strategy;
  if (o.strategy == "none") o.strategy = "ddp";
  const DataType computed = compute_type(parse_precision(options.model.precision, backend));
  return static_cast<double>(size_of(exchanged_type(o, computed))) / sizeof(float);
}

/// What was measured as `result`, on these links.
Scenario scenario_of(const Result& result, const ModelInputs& inputs, const Links& links,
                     BackendKind backend) {
  const TrainOptions& o = options_of(result);
  Scenario scenario;
  scenario.world_size = result.configuration.ranks;
  scenario.batch_size = batch_of(result);
  scenario.accumulate = o.accumulate;
  scenario.ring = links.ring.link;
  scenario.star = links.star.link;
  scenario.first_bucket_mb = o.strategy.first_bucket_mb;
  scenario.bucket_cap_mb = o.strategy.bucket_cap_mb;
  scenario.small_bucket = small_bucket(o.strategy);
  scenario.gradient_bytes_factor = gradient_bytes_factor(o, backend);
  scenario.weight_bytes_factor = inputs.sent_bytes_factor;
  scenario.overlap = backend == BackendKind::gpu && !o.strategy.no_overlap;
  if (o.strategy.ps_partition_mb > 0) {
    double bytes = 0;
    for (const ReadyGradient& gradient : inputs.gradients) bytes += gradient.bytes;
    scenario.partitions = static_cast<int>(
        std::ceil(bytes * inputs.sent_bytes_factor / (o.strategy.ps_partition_mb * kMebibyte)));
  }
  return scenario;
}

/// Whether the model describes what ran.
bool described(const Result& result) {
  const StrategyOptions& o = options_of(result).strategy;
  const auto known = predicted_strategies();
  if (std::find(known.begin(), known.end(), o.strategy) == known.end()) return false;
  if (o.strategy == "all-reduce" && o.per_tensor) return false;
  if (o.strategy == "ddp" && (o.bucket_copy || o.broadcast_buffers)) return false;
  return o.strategy != "parameter-server" || o.ps_exchange == "send-receive";
}

Json prediction_fields(const Prediction& p) {
  return {{"step_ms_predicted", p.step_ms},
          {"images_per_s_predicted", p.images_per_s},
          {"efficiency_predicted", p.efficiency},
          {"exposed_comm_ms_predicted", p.exposed_ms},
          {"extrapolated", p.extrapolated}};
}

std::string tell_links(const Links& links, const ModelInputs& inputs) {
  std::string text;
  for (const auto& [name, what, fit, points] :
       {std::tuple{"ring", "all-reduces", &links.ring, &inputs.links.ring},
        std::tuple{"star", "sends of all to one", &links.star, &inputs.links.star}}) {
    text += fmt::format(
        "  {}: {:.1f} us a message, {:.1f} GB/s; fits {} {} of {} to {} within "
        "{:.1f} %",
        name, fit->link.alpha_s * 1e6, fit->link.bytes_per_s / kGigabyte,
        points->size() - (fit->outlier ? 1 : 0), what, readable_bytes(points->front().bytes),
        readable_bytes(points->back().bytes), 100 * worst(*fit));
    if (fit->outlier)
      text += fmt::format("; not that of {}, by {:+.0f} %",
                          readable_bytes((*points)[*fit->outlier].bytes),
                          100 * fit->errors[*fit->outlier]);
    text += "\n";
  }
  return text;
}

void record_links(const Links& links, const Result& base, const Job& job) {
  for (const auto& [path, fit] : {std::pair{"ring", &links.ring}, std::pair{"star", &links.star}})
    job.record.write("link_cost", {{"path", path},
                                   {"backend", name_of(job.backend.kind)},
                                   {"world_size", base.configuration.ranks},
                                   {"alpha_us", fit->link.alpha_s * 1e6},
                                   {"bandwidth_gbs", fit->link.bytes_per_s / kGigabyte},
                                   {"worst_error", worst(*fit)}});
}

/// One base's part of the forecast.
class Forecast {
 public:
  Forecast(const std::vector<Result>& results, const Group& group, const Result& base,
           const StepModel& model, const Links& links, const Job& job)
      : results_(results),
        group_(group),
        base_(base),
        model_(model),
        links_(links),
        job_(job),
        scenario_(scenario_of(base, *base.inputs, links, job.backend.kind)) {}

  std::string against_measured() const {
    const std::vector<Column> columns{{"", "strategy", 26},
                                      {"", "ranks", 5},
                                      {"step ms,", "predicted", 9},
                                      {"", "measured", 9},
                                      {"error", "%", 6}};
    std::string rows;
    for (const Result* result : group_) {
      if (result->configuration.ranks == 1 || result == &base_ || !described(*result) ||
          batch_of(*result) != batch_of(base_))
        continue;
      const std::string& strategy = result->configuration.strategy();
      const Prediction p =
          model_.predict(strategy, scenario_of(*result, *base_.inputs, links_, job_.backend.kind));
      const double measured = step_value(*result, "step_ms_p50");
      const double error = p.step_ms / measured - 1;
      job_.record.write("prediction", merged(merged(result->identity, prediction_fields(p)),
                                             {{"step_ms_measured", measured}, {"error", error}}));
      rows += row(columns,
                  {"  " + strategy_label(result->configuration),
                   std::to_string(result->configuration.ranks), fmt::format("{:.2f}", p.step_ms),
                   fmt::format("{:.2f}", measured), fmt::format("{:+.1f}", 100 * error)});
    }
    return rows.empty() ? "" : "the model against what was measured:\n" + heading(columns) + rows;
  }

  std::string on_more_ranks() const {
    const std::vector<Column> columns{{"", "  ddp", 26},
                                      {"", "ranks", 5},
                                      {"step ms,", "predicted", 9},
                                      {"images/s", "total", 10},
                                      {"% of", "N x single", 10}};
    std::string rows;
    for (int times = 2; times <= kTimesRanks; times *= 2) {
      Scenario more = scenario_;
      more.world_size *= times;
      const Prediction p = model_.predict("ddp", more);
      Json identity = base_.identity;
      identity["strategy"] = "ddp";
      identity["world_size"] = more.world_size;
      identity["bucket_cap_mb"] = more.bucket_cap_mb;
      job_.record.write("prediction", merged(identity, prediction_fields(p)));
      rows += row(columns, {"", std::to_string(more.world_size), fmt::format("{:.2f}", p.step_ms),
                            fmt::format("{:.0f}", p.images_per_s),
                            fmt::format("{:.1f}", 100 * p.efficiency)});
    }
    return "on more ranks, were all links as these:\n" + heading(columns) + rows;
  }

  std::string buckets() const {
    if (!scenario_.overlap) return "";
    const std::vector<ReadyGradient> gradients = model_.gradients(scenario_);
    const double backward_ms = model_.backward_ms(scenario_);
    const ExchangeTime time = time_of(ring_all_reduce(scenario_.world_size), scenario_.ring,
                                      scenario_.gradient_bytes_factor);
    const BucketPlan rule =
        capped_plan(gradients, scenario_.first_bucket_mb * kMebibyte,
                    scenario_.bucket_cap_mb * kMebibyte, backward_ms, time, scenario_.small_bucket);
    const BucketPlan best = best_plan(gradients, backward_ms, time);
    std::vector<double> sizes;
    std::string listed;
    for (const ReadyBucket& bucket : group(gradients, best.ends)) {
      sizes.push_back(bucket.bytes / kMebibyte);
      listed += fmt::format("{}{:.1f}", listed.empty() ? "" : ", ", sizes.back());
    }
    job_.record.write("bucket_plan",
                      merged(base_.identity, {{"rule_buckets", rule.ends.size()},
                                              {"rule_exposed_ms", rule.overlap.exposed_ms},
                                              {"best_exposed_ms", best.overlap.exposed_ms},
                                              {"best_buckets_mib", sizes}}));
    return fmt::format(
        "buckets: the caps of {:g} and {:g} MiB leave {:.3f} ms exposed; no plan less than "
        "{:.3f} ms, with buckets of {} MiB (float32)\n",
        scenario_.first_bucket_mb, scenario_.bucket_cap_mb, rule.overlap.exposed_ms,
        best.overlap.exposed_ms, listed);
  }

  std::string advice() const {
    const auto peaks = base_.steps.front().at("peak_memory_bytes").get<std::vector<double>>();
    const int sharing = job_.backend.kind == BackendKind::cpu ? job_.session.local_size() : 1;
    const double room = static_cast<double>(job_.backend.device->memory().total_bytes) / sharing /
                        *std::max_element(peaks.begin(), peaks.end());
    const auto largest = static_cast<int>(batch_of(base_) * std::min(room, 1e3));
    std::string text = "advice for ddp, by predicted gain:\n";
    Json identity = base_.identity;
    identity["strategy"] = "ddp";
    identity["bucket_cap_mb"] = scenario_.bucket_cap_mb;
    const auto all =
        advise(model_, "ddp", scenario_, usual_changes(scenario_, largest, half_speedup()));
    for (const Advice& a : all) {
      job_.record.write("advice", merged(identity, {{"change", a.text},
                                                    {"gain_percent", a.gain_percent},
                                                    {"extrapolated", a.prediction.extrapolated}}));
      if (static_cast<std::size_t>(&a - all.data()) < kMostAdvice)
        text += fmt::format("  {:+6.1f} %  {}{}\n", a.gain_percent, a.text,
                            a.prediction.extrapolated ? " (extrapolated)" : "");
    }
    return all.empty() ? "" : text;
  }

  /// Batches around the measured ones, bandwidths from a slow network's to the measured one.
  std::string winners(const std::vector<const Result*>& bases) const {
    std::vector<int> batches;
    for (const Result* base : bases) batches.push_back(batch_of(*base));
    std::sort(batches.begin(), batches.end());
    std::vector<double> bandwidths;
    for (const double gbs : {0.3, 1.0, 3.0, 10.0, 30.0, 100.0})
      if (gbs * kGigabyte < 0.7 * scenario_.ring.bytes_per_s) bandwidths.push_back(gbs * kGigabyte);
    bandwidths.push_back(scenario_.ring.bytes_per_s);
    if (!std::isfinite(bandwidths.back())) bandwidths.pop_back();
    std::vector<std::string> strategies = predicted_strategies();
    strategies.erase(std::find(strategies.begin(), strategies.end(), "none"));

    std::vector<Column> columns{{"", "  batch", 8}};
    std::vector<std::string> names;
    for (double bandwidth : bandwidths)
      names.push_back(fmt::format("{:.3g} GB/s", bandwidth / kGigabyte));
    for (const std::string& name : names) columns.push_back({"", name.c_str(), 26});
    std::string text = heading(columns);
    Scenario computed = scenario_;  // a type that all of them can exchange
    computed.gradient_bytes_factor = computed.weight_bytes_factor;
    const auto map = map_winners(model_, computed, strategies, batches, bandwidths);
    for (std::size_t b = 0; b < batches.size(); ++b) {
      std::vector<std::string> cells{fmt::format("  {:>5}", batches[b])};
      for (std::size_t w = 0; w < bandwidths.size(); ++w) {
        const Winner& winner = map[b * bandwidths.size() + w];
        Json identity = base_.identity;
        identity["batch_size"] = winner.batch_size;
        identity["strategy"] = winner.strategy;
        job_.record.write("winner",
                          merged(identity, {{"bandwidth_gbs", winner.bytes_per_s / kGigabyte},
                                            {"second", winner.second},
                                            {"margin", winner.margin}}));
        cells.push_back(winner.margin < kTie
                            ? fmt::format("{} or another", winner.strategy)
                            : fmt::format("{} {:+.1f} %", winner.strategy, 100 * winner.margin));
      }
      text += row(columns, cells);
    }
    return "the fastest strategy by batch and bandwidth of a rank's link, and its margin over the "
           "second:\n" +
           text;
  }

 private:
  /// What float16 computes faster, where both were measured.
  std::optional<double> half_speedup() const {
    for (const Result& other : results_)
      if (other.measured() && options_of(other).model.precision == "fp16" &&
          options_of(other).model.model == options_of(base_).model.model &&
          other.configuration.strategy() == "none" &&
          other.configuration.ranks == base_.configuration.ranks &&
          batch_of(other) == batch_of(base_) && options_of(base_).model.precision != "fp16")
        return term(base_, "compute_ms") / term(other, "compute_ms");
    return std::nullopt;
  }

  const std::vector<Result>& results_;
  const Group& group_;
  const Result& base_;
  const StepModel& model_;
  const Links& links_;
  const Job& job_;
  Scenario scenario_;
};

}  // namespace

ModelInputs model_inputs(Engine& engine, const Trace& steps) {
  const Network& network = engine.network();
  const ParameterTable& table = network.table();
  const DataType type = network.weights().type();
  const BackwardTimes times = backward_times(steps);
  ModelInputs inputs;
  const auto& parameters = table.parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    const auto count = static_cast<double>(table.payload_in({p->offset, p->offset + p->stored}));
    inputs.gradients.push_back(
        {count * sizeof(float), times.ready_ms.at(static_cast<std::size_t>(p->block)), p->block});
  }
  inputs.backward_ms = times.backward_ms;
  inputs.sent_bytes_factor = static_cast<double>(size_of(type)) / sizeof(float);
  inputs.input_bytes_per_image =
      static_cast<double>(batch_bytes(network.settings())) / network.settings().batch_size;
  return inputs;
}

std::string forecast(const std::vector<Result>& results, const Job& job) {
  std::string text;
  for (const Group& group : groups_of(results)) {
    const std::vector<const Result*> bases = bases_of(group);
    if (bases.empty()) continue;
    const Result& first = *bases.front();
    const Links links = fit(first);
    record_links(links, first, job);
    text += fmt::format("\nwhat if: {}, {}, from {} ranks\nlinks:\n{}",
                        options_of(first).model.model, options_of(first).model.precision,
                        first.configuration.ranks, tell_links(links, *first.inputs));
    for (const Result* base : bases) {
      const StepModel model = model_of(group, bases, *base);
      const Forecast forecast(results, group, *base, model, links, job);
      text += fmt::format("batch {}: ", batch_of(*base)) + forecast.against_measured() +
              forecast.on_more_ranks() + forecast.buckets() + forecast.advice();
    }
    const StepModel model = model_of(group, bases, first);
    text += Forecast(results, group, first, model, links, job).winners(bases);
  }
  return text;
}

}  // namespace shakedown
