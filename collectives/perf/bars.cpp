#include "collectives/perf/bars.hpp"

#include <fmt/format.h>

namespace shakedown::collectives {
namespace {

/// nccl-tests fails below this share of NCCL_TESTS_MIN_BW.
constexpr double kShareOfMean = 0.9;

}  // namespace

void Tally::count_busbw(double gbs) {
  busbw_sum_gbs_ += gbs;
  ++measured_;
}

Totals Tally::totals() const {
  const double mean = measured_ > 0 ? busbw_sum_gbs_ / static_cast<double>(measured_) : 0;
  if (!bar_) return {wrong_rows_, mean, ""};
  return {wrong_rows_, mean, mean >= kShareOfMean * *bar_ ? "OK" : "FAILED"};
}

Outcome Tally::outcome() const {
  return wrong_rows_ > 0 || totals().judgement == "FAILED" ? Outcome::fail : Outcome::pass;
}

Bars::Bars(const BarOptions& options, const MpiSession& session, const std::string& program)
    : options_(options), judging_({}, session, program) {
  if (options.min_busbw_gbs > 0) judging_.bar("collective/*/busbw", options.min_busbw_gbs, {});
  if (options.max_latency_us > 0) judging_.bar("collective/*/latency", {}, options.max_latency_us);
}

void Bars::start(const std::vector<Trial>& rows) {
  smallest_.reset();
  for (const Trial& row : rows) {
    if (row.counts.call > 0 && !smallest_) smallest_ = row.requested_bytes;
    largest_ = row.requested_bytes;
  }
}

void Bars::judge(const Trial& row, const Figures& figures, const judge::Observation& observation) {
  const auto add = [&](const char* figure, const char* unit, double value) {
    judge::Observation shown = observation;
    shown.metric = fmt::format("collective/{}/{}", row.operation->name, figure);
    shown.unit = unit;
    shown.samples = {value};
    judging_.add(shown, unrecorded_);
  };
  if (options_.min_busbw_gbs > 0 && row.requested_bytes == largest_)
    add("busbw", "GB/s", figures.busbw_gbs);
  if (options_.max_latency_us > 0 && row.requested_bytes == smallest_)
    add("latency", "us", figures.time_us);
}

std::optional<Verdict> idle_bars(const BarOptions& options, const Operation& operation,
                                 bool moves_data, int ranks) {
  std::string bars;
  if (options.min_busbw_gbs > 0) bars += fmt::format(" --min-busbw {:g}", options.min_busbw_gbs);
  if (options.max_latency_us > 0)
    bars += fmt::format(" --max-latency {:g}", options.max_latency_us);
  if (bars.empty() || (moves_data && ranks > 1)) return std::nullopt;
  Verdict verdict{Scope::operation, operation.name, Outcome::inconclusive, bars.substr(1) + ": ",
                  Class::config};
  verdict.check = "bar";
  verdict.cause += ranks > 1 ? "no row moves data to be judged" : "one rank exchanges nothing";
  verdict.action = ranks > 1 ? "raise --max-bytes" : "start at least 2 ranks";
  return verdict;
}

}  // namespace shakedown::collectives
