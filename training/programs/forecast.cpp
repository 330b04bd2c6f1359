#include "training/programs/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "training/predict/advice.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/fitted_model.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

constexpr double kGigabyte = 1e9;
constexpr int kTimesRanks = 8;     // predictions go up to this many times the measured ranks
constexpr double kTrusted = 0.15;  // a model further off what was measured is not printed

/// The model of one measured batch.
struct Modelled {
  const Result& base;
  StepModel model;
  Scenario scenario;
};

struct Row {
  std::string strategy;
  int batch = 0;
  int ranks = 0;
  double predicted_ms = 0;
  double measured_ms = 0;  // 0: it was not
  double error() const { return measured_ms > 0 ? predicted_ms / measured_ms - 1 : 0; }
};

Json prediction_fields(const Prediction& p) {
  return {{"step_ms_predicted", p.step_ms},
          {"images_per_s_predicted", p.images_per_s},
          {"efficiency_predicted", p.efficiency},
          {"exposed_comm_ms_predicted", p.exposed_ms},
          {"extrapolated", p.extrapolated}};
}

/// One group's part: its records, then its text.
class Forecast {
 public:
  Forecast(const Group& group, const std::vector<const Result*>& bases, const Job& job)
      : group_(group), job_(job), links_(fit_links(*bases.front())) {
    for (const Result* base : bases)
      models_.push_back({*base, model_of(group, bases, *base),
                         scenario_of(*base, *base->inputs, links_, job.backend.kind)});
  }

  std::string write() {
    record_links();
    for (const Modelled& m : models_) compare_with_measured(m);
    for (const Modelled& m : models_) {
      predict_more_ranks(m);
      record_advice(m);
    }
    record_winners();
    return text();
  }

 private:
  void record_links() const {
    const ModelInputs& inputs = *models_.front().base.inputs;
    const auto write = [&](const char* path, const LinkFit& fit,
                           const std::vector<TransferPoint>& points, const Json& more) {
      std::vector<double> bytes, time_us;
      for (const TransferPoint& point : points) {
        bytes.push_back(point.bytes);
        time_us.push_back(point.seconds * 1e6);
      }
      job_.record.write("link_cost", merged({{"path", path},
                                             {"backend", name_of(job_.backend.kind)},
                                             {"world_size", models_.front().scenario.world_size},
                                             {"alpha_us", fit.link.alpha_s * 1e6},
                                             {"bandwidth_gbs", fit.link.bytes_per_s / kGigabyte},
                                             {"worst_error", fit.worst_error},
                                             {"bytes", bytes},
                                             {"time_us", time_us}},
                                            more));
    };
    write("ring", links_.ring, inputs.links.ring, Json::object());
    write("star", links_.star, inputs.links.star,
          {{"average_gbs", 1 / inputs.links.average_s_per_byte / kGigabyte}});
  }

  void compare_with_measured(const Modelled& m) {
    for (const Result* result : group_) {
      if (result->configuration.ranks == 1 || result == &m.base || !model_describes(*result) ||
          !comparable_with_none(*result, job_.backend.kind) ||
          batch_of(*result) != batch_of(m.base))
        continue;
      const Prediction p =
          m.model.predict(result->configuration.strategy(),
                          scenario_of(*result, *m.base.inputs, links_, job_.backend.kind));
      const Row& row =
          rows_.emplace_back(Row{strategy_label(result->configuration), batch_of(*result),
                                 result->configuration.ranks, p.step_ms, step_ms_median(*result)});
      job_.record.write("prediction",
                        merged(merged(record_of(result->identity), prediction_fields(p)),
                               {{"step_ms_measured", row.measured_ms}, {"error", row.error()}}));
      if (std::abs(row.error()) >= std::abs(worst_.error())) worst_ = row;
    }
  }

  void predict_more_ranks(const Modelled& m) {
    for (int times = 2; times <= kTimesRanks; times *= 2) {
      Scenario more = m.scenario;
      more.world_size *= times;
      const Prediction p = m.model.predict("ddp", more);
      Json identity = identity_of(m, "ddp");
      identity["world_size"] = more.world_size;
      identity["bucket_cap_mb"] = more.bucket_cap_mb;
      job_.record.write("prediction", merged(identity, prediction_fields(p)));
      rows_.push_back({fmt::format("ddp, {:g} MiB", more.bucket_cap_mb), more.batch_size,
                       more.world_size, p.step_ms, 0});
    }
  }

  void record_advice(const Modelled& m) const {
    const auto peaks = m.base.rounds.front().throughput.peak_memory_bytes;
    const int sharing = ranks_on_device(job_.backend, job_.session);
    const double room = static_cast<double>(job_.backend.device->memory().total_bytes) / sharing /
                        *std::max_element(peaks.begin(), peaks.end());
    const auto largest = static_cast<int>(batch_of(m.base) * std::min(room, 1e3));
    Json identity = identity_of(m, "ddp");
    identity["bucket_cap_mb"] = m.scenario.bucket_cap_mb;
    for (const Advice& a :
         advise(m.model, "ddp", m.scenario, usual_changes(m.model, m.scenario, largest)))
      job_.record.write("advice", merged(identity, {{"change", a.text},
                                                    {"gain_percent", a.gain_percent},
                                                    {"extrapolated", a.extrapolated}}));
  }

  /// Records the fastest strategy by batch, and by bandwidth from a slow network's to the measured.
  void record_winners() const {
    const Modelled& first = models_.front();
    std::vector<std::string> strategies = predicted_strategies();
    std::erase_if(strategies, [&](const std::string& strategy) {  // none would always win
      return strategy == "none" ||
             (job_.backend.kind == BackendKind::cpu && find_strategy(strategy).ranks.first_serves);
    });
    const double measured = first.scenario.ring.bytes_per_s;
    std::vector<double> bandwidths;
    for (const double gbs : {0.3, 1.0, 3.0, 10.0, 30.0, 100.0})
      if (gbs * kGigabyte < 0.7 * measured) bandwidths.push_back(gbs * kGigabyte);
    if (std::isfinite(measured)) bandwidths.push_back(measured);
    for (const Modelled& m : models_)
      for (const double bandwidth : bandwidths) {
        Scenario scenario = first.scenario;
        scenario.batch_size = batch_of(m.base);
        scenario.gradient_bytes_factor = scenario.weight_bytes_factor;  // a type that all exchange
        if (bandwidth != measured)  // where the star keeps its own
          scenario.ring.bytes_per_s = scenario.star.bytes_per_s = bandwidth;
        const Winner winner = find_winner(first.model, scenario, strategies);
        job_.record.write("winner", merged(identity_of(m, winner.strategy),
                                           {{"bandwidth_gbs", bandwidth / kGigabyte},
                                            {"second", winner.second},
                                            {"margin", winner.margin}}));
      }
  }

  /// A model that was compared with nothing is not.
  bool compared() const { return worst_.measured_ms > 0; }
  bool trusted() const { return compared() && std::abs(worst_.error()) <= kTrusted; }

  Json identity_of(const Modelled& m, const std::string& strategy) const {
    Json fields = record_of(m.base.identity);
    fields["strategy"] = strategy;
    fields["trusted"] = trusted();
    if (compared()) fields["model_error"] = std::abs(worst_.error());
    return fields;
  }

  std::string text() const {
    const Result& base = models_.front().base;
    const std::string title =
        fmt::format("\nwhat if: {}, {}, from {} ranks", options_of(base).model.model,
                    options_of(base).model.precision, base.configuration.ranks);
    if (!compared())
      return title +
             ": predictions and advice are in the record only, as no step was measured that the "
             "model could be compared with\n";
    if (!trusted())
      return title +
             fmt::format(
                 ": predictions and advice are in the record only, as the model is off by {:.1f} % "
                 "({} on {} ranks: {:.2f} ms predicted, {:.2f} measured); up to {:.0f} % they are "
                 "printed\n",
                 100 * std::abs(worst_.error()), worst_.strategy, worst_.ranks, worst_.predicted_ms,
                 worst_.measured_ms, 100 * kTrusted);
    constexpr const char* kRow = "  {:<26} {:>6} {:>6} {:>10} {:>9} {:>7}\n";
    std::string text = title + ", on more ranks if all links are like these\n" +
                       fmt::format(kRow, "", "batch", "ranks", "predicted", "measured", "error");
    for (const Row& row : rows_) {
      const bool measured = row.measured_ms > 0;
      text += fmt::format(kRow, row.strategy, row.batch, row.ranks,
                          fmt::format("{:.2f} ms", row.predicted_ms),
                          measured ? fmt::format("{:.2f} ms", row.measured_ms) : "-",
                          measured ? fmt::format("{:+.1f} %", 100 * row.error()) : "-");
    }
    return text;
  }

  const Group& group_;
  const Job& job_;
  Links links_;
  std::vector<Modelled> models_;
  std::vector<Row> rows_;
  Row worst_;  // of those that were measured
};

}  // namespace

std::string forecast(const std::vector<Result>& results, const Job& job) {
  std::string text;
  for (const Group& group : groups_of(results))
    if (const std::vector<const Result*> bases = bases_of(group); !bases.empty())
      text += Forecast(group, bases, job).write();
  return text;
}

}  // namespace shakedown::training
