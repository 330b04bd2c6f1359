#include "collectives/perf/bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "collectives/perf/collective_record.hpp"

namespace shakedown::collectives {
namespace {

/// nccl-tests fails below this share of NCCL_TESTS_MIN_BW.
constexpr double kShareOfMean = 0.9;

std::string bars_on_sizes(const BarOptions& options) {
  std::vector<std::string> bars;
  if (options.min_busbw_gbs > 0)
    bars.push_back(fmt::format("--min-busbw {:g}", options.min_busbw_gbs));
  if (options.max_latency_us > 0)
    bars.push_back(fmt::format("--max-latency {:g}", options.max_latency_us));
  return fmt::format("{}", fmt::join(bars, ", "));
}

}  // namespace

std::optional<Verdict> judge_row(const BarOptions& options, const Json& c, double shown_time_us,
                                 bool smallest, bool largest) {
  const std::string name = name_of_row(c);
  const double busbw = c.at("busbw_gbs").get<double>();
  const bool exchanges = c.at("world_size").get<int>() > 1;
  std::optional<Verdict> worst;
  const auto hold = [&](Verdict verdict) {
    if (!worst || verdict.outcome >= worst->outcome) worst = std::move(verdict);
  };
  const auto hold_bar = [&](bool holds, const std::string& what) {
    if (exchanges)
      return hold({Scope::operation, name, holds ? Outcome::pass : Outcome::fail, what});
    hold({Scope::operation, name, Outcome::inconclusive, what + ": one rank exchanges nothing",
          Class::config, "start at least 2 ranks"});
  };
  if (options.min_busbw_gbs > 0 && largest)
    hold_bar(busbw >= options.min_busbw_gbs,
             fmt::format("busbw {:.4g} GB/s, --min-busbw {:g}", busbw, options.min_busbw_gbs));
  if (options.max_latency_us > 0 && smallest)
    hold_bar(shown_time_us <= options.max_latency_us,
             fmt::format("{:.4g} us, --max-latency {:g}", shown_time_us, options.max_latency_us));
  if (const Json& wrong = c.at("wrong_elements"); wrong.is_number() && wrong.get<double>() > 0)
    hold({Scope::operation, name, Outcome::fail,
          fmt::format("{:.0f} wrong elements: {}", wrong.get<double>(), c.value("first_wrong", "")),
          std::nullopt, kWrongDataAction});
  return worst;
}

void Bars::start(const std::vector<Trial>& rows) {
  smallest_.reset();
  for (const Trial& row : rows) {
    if (row.counts.call > 0 && !smallest_) smallest_ = row.requested_bytes;
    largest_ = row.requested_bytes;
  }
}

void Bars::count_busbw(double gbs) {
  busbw_sum_gbs_ += gbs;
  ++measured_;
}

void Bars::judge(const Json& collective, const Trial& trial, double shown_time_us) {
  if (trial.counts.call == 0) return;  // nothing moved: nothing to judge
  if (reference_) reference_->add(collective, trial);
  if (auto verdict =
          judge_row(options_, collective, shown_time_us, trial.requested_bytes == smallest_,
                    trial.requested_bytes == largest_))
    conclude(std::move(*verdict));
}

void Bars::finish_operation(const Operation& operation) {
  const std::string bars = bars_on_sizes(options_);
  if (!smallest_ && !bars.empty())
    conclude({Scope::operation, operation.name, Outcome::inconclusive,
              bars + ": no row moves data to be judged", Class::config, "raise --max-bytes"});
}

std::vector<ComparedRow*> Bars::slower_rows() {
  return reference_ ? reference_->slower_rows() : std::vector<ComparedRow*>();
}

void Bars::judge_by_reference(const std::string& program) {
  if (!reference_) return;
  for (Verdict& verdict : reference_->judge_rows(program)) conclude(std::move(verdict));
}

void Bars::conclude(Verdict verdict) {
  worst_ = std::max(worst_, verdict.outcome);
  verdicts_.push_back(std::move(verdict));
}

std::vector<Verdict> Bars::take_verdicts() { return std::exchange(verdicts_, {}); }

Totals Bars::totals() const {
  const double mean = measured_ > 0 ? busbw_sum_gbs_ / static_cast<double>(measured_) : 0;
  if (!options_.min_mean_busbw_gbs) return {wrong_rows_, mean, ""};
  const bool holds = mean >= kShareOfMean * *options_.min_mean_busbw_gbs;
  return {wrong_rows_, mean, holds ? "OK" : "FAILED"};
}

ExitCode Bars::result() const {
  const bool failed = wrong_rows_ > 0 || totals().judgement == "FAILED";
  return exit_code_of(failed ? Outcome::fail : worst_);
}

}  // namespace shakedown::collectives
