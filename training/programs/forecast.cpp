#include "training/programs/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/progress.hpp"
#include "common/text_table.hpp"
#include "training/predict/advice.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/fitted_model.hpp"
#include "training/step/memory_budget.hpp"

namespace shakedown::training {
namespace {

constexpr double kGigabyte = 1e9;
constexpr int kTimesRanks = 8;  // predictions go up to this many times the measured ranks
constexpr double kTie = 0.0005;
constexpr double kTrusted = 0.15;  // a model further off what was measured is not printed

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
        readable_bytes(points->back().bytes), 100 * worst_error(*fit));
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
                                   {"worst_error", worst_error(*fit)}});
}

/// One base's part of the forecast.
class Forecast {
 public:
  Forecast(const std::vector<Result>& results, const Group& group, const Result& base,
           StepModel model, const Links& links, const Job& job)
      : results_(results),
        group_(group),
        base_(base),
        model_(std::move(model)),
        links_(links),
        job_(job),
        scenario_(scenario_of(base, *base.inputs, links, job.backend.kind)) {}

  /// The model's error, where it is too large to print anything of it.
  bool trusted() const { return worst_ <= kTrusted; }

  /// First, as the other records name the error that this finds.
  std::string against_measured() {
    const std::vector<Column> columns{{"", "strategy", 26},
                                      {"", "ranks", 5},
                                      {"step ms,", "predicted", 9},
                                      {"", "measured", 9},
                                      {"error", "%", 6}};
    std::string rows;
    for (const Result* result : group_) {
      if (result->configuration.ranks == 1 || result == &base_ || !model_describes(*result) ||
          !comparable_with_none(*result, job_.backend.kind) || batch_of(*result) != batch_of(base_))
        continue;
      const std::string& strategy = result->configuration.strategy();
      const Prediction p =
          model_.predict(strategy, scenario_of(*result, *base_.inputs, links_, job_.backend.kind));
      const double measured = step_ms_median(*result);
      const double error = p.step_ms / measured - 1;
      job_.record.write("prediction",
                        merged(merged(record_of(result->identity), prediction_fields(p)),
                               {{"step_ms_measured", measured}, {"error", error}}));
      compared_ = true;
      if (std::abs(error) > worst_) {
        worst_ = std::abs(error);
        worst_at_ = fmt::format("{}: {:.2f} ms predicted, {:.2f} measured",
                                label_of(result->configuration), p.step_ms, measured);
      }
      rows += row(columns,
                  {"  " + strategy_label(result->configuration),
                   std::to_string(result->configuration.ranks), fmt::format("{:.2f}", p.step_ms),
                   fmt::format("{:.2f}", measured), fmt::format("{:+.1f}", 100 * error)});
    }
    if (rows.empty()) return "the model was compared with no measured step\n";
    return "the model compared with what was measured:\n" + heading(columns) + rows;
  }

  std::string distrust() const {
    return fmt::format(
        "its predictions and advice are in the record alone, as the model is off by {:.1f} % ({}); "
        "up to {:.0f} % they are printed\n",
        100 * worst_, worst_at_, 100 * kTrusted);
  }

  std::string on_more_ranks() const {
    const std::vector<Column> columns{{"", "  ddp", 26},
                                      {"", "ranks", 5},
                                      {"step ms,", "predicted", 9},
                                      {"images/s", "total", 10},
                                      {"% of", "no exchange", 11}};
    std::string rows;
    for (int times = 2; times <= kTimesRanks; times *= 2) {
      Scenario more = scenario_;
      more.world_size *= times;
      const Prediction p = model_.predict("ddp", more);
      Json identity = record_of(base_.identity);
      identity["strategy"] = "ddp";
      identity["world_size"] = more.world_size;
      identity["bucket_cap_mb"] = more.bucket_cap_mb;
      job_.record.write("prediction", merged(with_error(identity), prediction_fields(p)));
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
    job_.record.write("bucket_plan", merged(with_error(record_of(base_.identity)),
                                            {{"rule_buckets", rule.ends.size()},
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
    const auto peaks = base_.rounds.front().throughput.peak_memory_bytes;
    const int sharing = ranks_on_device(job_.backend, job_.session);
    const double room = static_cast<double>(job_.backend.device->memory().total_bytes) / sharing /
                        *std::max_element(peaks.begin(), peaks.end());
    const auto largest = static_cast<int>(batch_of(base_) * std::min(room, 1e3));
    std::string text = "advice for ddp, by predicted gain:\n";
    Json identity = with_error(record_of(base_.identity));
    identity["strategy"] = "ddp";
    identity["bucket_cap_mb"] = scenario_.bucket_cap_mb;
    std::vector<Change> changes = usual_changes(scenario_, largest, half_speedup());
    if (scenario_.overlap) changes.push_back(best_buckets(model_, scenario_));
    const std::vector<Advice> all = advise(model_, "ddp", scenario_, changes);
    for (const Advice& a : all) {
      job_.record.write("advice", merged(identity, {{"change", a.text},
                                                    {"gain_percent", a.gain_percent},
                                                    {"extrapolated", a.prediction.extrapolated}}));
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
    std::erase_if(strategies, [&](const std::string& strategy) {  // none would always win
      return strategy == "none" ||
             (job_.backend.kind == BackendKind::cpu && find_strategy(strategy).ranks.first_serves);
    });

    std::vector<Column> columns{{"", "  batch", 8}};
    std::vector<std::string> names;
    for (double bandwidth : bandwidths)
      names.push_back(fmt::format("{:.3g} GB/s", bandwidth / kGigabyte));
    for (const std::string& name : names) columns.push_back({"", name.c_str(), 26});
    std::string text = heading(columns);
    Scenario computed = scenario_;  // a type that all of them can exchange
    computed.gradient_bytes_factor = computed.weight_bytes_factor;
    const auto map = map_winners(model_, computed, strategies, batches, bandwidths);
    const bool decided = std::any_of(map.begin(), map.end(),
                                     [](const Winner& winner) { return winner.margin >= kTie; });
    for (std::size_t b = 0; b < batches.size(); ++b) {
      std::vector<std::string> cells{fmt::format("  {:>5}", batches[b])};
      for (std::size_t w = 0; w < bandwidths.size(); ++w) {
        const Winner& winner = map[b * bandwidths.size() + w];
        Json identity = with_error(record_of(base_.identity));
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
    if (!decided) return "";
    return "the fastest strategy by batch and bandwidth of a rank's link, and its margin over the "
           "second:\n" +
           text;
  }

 private:
  Json with_error(Json fields) const {
    if (compared_) fields["model_error"] = worst_;
    return fields;
  }

  /// What float16 computes faster, where both were measured.
  std::optional<double> half_speedup() const {
    for (const Result& other : results_)
      if (other.measured() && options_of(other).model.precision == "fp16" &&
          options_of(other).model.model == options_of(base_).model.model &&
          other.configuration.strategy() == "none" &&
          other.configuration.ranks == base_.configuration.ranks &&
          batch_of(other) == batch_of(base_) && options_of(base_).model.precision != "fp16")
        return median_over_rounds(base_, &Breakdown::compute_ms) /
               median_over_rounds(other, &Breakdown::compute_ms);
    return std::nullopt;
  }

  const std::vector<Result>& results_;
  const Group& group_;
  const Result& base_;
  StepModel model_;
  const Links& links_;
  const Job& job_;
  Scenario scenario_;
  bool compared_ = false;
  double worst_ = 0;      // error of a step that was measured, either way
  std::string worst_at_;  // whose
};

/// Strategies of the group that cannot be compared with `none`.
std::string tell_incomparable(const Group& group, BackendKind backend) {
  std::string names;
  for (const Result* result : group) {
    const std::string& name = result->configuration.strategy();
    if (comparable_with_none(*result, backend) || names.find(name) != std::string::npos) continue;
    names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty()) return "";
  return fmt::format(
      "not comparable with none, as the server leaves its share of the host to the workers: {}\n",
      names);
}

}  // namespace

std::string forecast(const std::vector<Result>& results, const Job& job) {
  std::string text;
  for (const Group& group : groups_of(results)) {
    const std::vector<const Result*> bases = bases_of(group);
    if (bases.empty()) continue;
    const Result& first = *bases.front();
    const Links links = fit_links(first);
    record_links(links, first, job);
    text += fmt::format("\nwhat if: {}, {}, from {} ranks\nlinks:\n{}",
                        options_of(first).model.model, options_of(first).model.precision,
                        first.configuration.ranks, tell_links(links, *first.inputs));
    text += tell_incomparable(group, job.backend.kind);
    bool all_trusted = true;
    std::vector<Forecast> forecasts;
    for (const Result* base : bases) {
      Forecast& forecast =
          forecasts.emplace_back(results, group, *base, model_of(group, bases, *base), links, job);
      const std::string compared = forecast.against_measured();
      const std::string predicted =
          forecast.on_more_ranks() + forecast.buckets() + forecast.advice();
      text += fmt::format("batch {}: ", batch_of(*base)) +
              (forecast.trusted() ? compared + predicted : forecast.distrust());
      all_trusted = all_trusted && forecast.trusted();
    }
    const std::string winners = forecasts.front().winners(bases);
    if (all_trusted) text += winners;
  }
  return text;
}

}  // namespace shakedown::training
