#include "training/predict/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/error.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

constexpr double kLeastGainPercent = 1e-6;  // less is rounding

/// Few buckets hold compute up for less long, many hide better.
Change best_buckets(const StepModel& model, const Scenario& base) {
  Change best{"", base};
  double least_ms = model.predict("ddp", base).step_ms;
  for (const SmallBucket small : {SmallBucket::first, SmallBucket::last})
    for (const double small_mb : {1, 5, 10})
      for (const double cap_mb : {5, 10, 25, 50, 100, 200}) {
        Scenario scenario = base;
        scenario.small_bucket = small;
        scenario.small_bucket_mb = small_mb;
        scenario.bucket_cap_mb = cap_mb;
        const double ms = model.predict("ddp", scenario).step_ms;
        if (ms >= least_ms) continue;
        least_ms = ms;
        best = {fmt::format("--bucket-cap-mb {:g} --small-bucket-mb {:g} --bucket-order {}", cap_mb,
                            small_mb, small == SmallBucket::first ? "small-first" : "small-last"),
                scenario};
      }
  return best;
}

}  // namespace

Winner find_winner(const StepModel& model, const Scenario& scenario,
                   const std::vector<std::string>& strategies) {
  std::vector<std::pair<double, std::string>> rates;
  for (const std::string& strategy : strategies)
    if (scenario.world_size >= find_strategy(strategy).ranks.least)
      rates.emplace_back(model.predict(strategy, scenario).images_per_s, strategy);
  ENSURE(!rates.empty(), "some strategy runs on these ranks");
  std::stable_sort(rates.begin(), rates.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (rates.size() == 1) return {rates[0].second, "", 0};
  return {rates[0].second, rates[1].second, rates[0].first / rates[1].first - 1};
}

std::vector<Change> usual_changes(const StepModel& model, const Scenario& base,
                                  int largest_batch_size) {
  std::vector<Change> changes;
  const auto add = [&](std::string text, auto change) {
    Scenario scenario = base;
    change(scenario);
    changes.push_back({std::move(text), scenario});
  };
  for (const int factor : {2, 4}) {
    const int batch_size = base.batch_size * factor;
    if (batch_size > largest_batch_size) break;
    add(fmt::format("batch {}", batch_size), [&](Scenario& s) { s.batch_size = batch_size; });
  }
  if (base.gradient_bytes_factor > 0.5)
    add("fp16 gradients", [](Scenario& s) { s.gradient_bytes_factor = 0.5; });
  add("gradients compressed to a quarter", [](Scenario& s) { s.gradient_bytes_factor /= 4; });
  for (const int factor : {2, 4, 8}) {
    add(fmt::format("a path {} times as fast", factor), [&](Scenario& s) {
      s.ring.bytes_per_s *= factor;
      s.star.bytes_per_s *= factor;
    });
    add(fmt::format("an update every {} micro-batches", base.accumulate * factor),
        [&](Scenario& s) { s.accumulate *= factor; });
  }
  if (base.overlap) changes.push_back(best_buckets(model, base));
  return changes;
}

std::vector<Advice> advise(const StepModel& model, const std::string& strategy,
                           const Scenario& base, const std::vector<Change>& changes) {
  const double base_per_s = model.predict(strategy, base).images_per_s;
  std::vector<Advice> advice;
  for (const Change& change : changes) {
    const Prediction prediction = model.predict(strategy, change.scenario);
    const double gain_percent = 100 * (prediction.images_per_s / base_per_s - 1);
    if (gain_percent > kLeastGainPercent)
      advice.push_back({change.text, gain_percent, prediction.extrapolated});
  }
  std::stable_sort(advice.begin(), advice.end(), [](const Advice& a, const Advice& b) {
    return a.gain_percent > b.gain_percent;
  });
  return advice;
}

}  // namespace shakedown::training
