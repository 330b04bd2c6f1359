#include "training/programs/comparison_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/text_table.hpp"
#include "training/programs/describe.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kUnmeasured = "-";  // not measured

Spread rate_over_rounds(const std::vector<Round>& rounds) {
  std::vector<double> rates;
  for (const Round& round : rounds) rates.push_back(round.throughput.images_per_s);
  const Summary s = summarize(rates);
  const auto& interval = rounds.front().throughput.interval;
  if (rounds.size() == 1 && interval) return {interval->low, s.median, interval->high};
  return {s.min, s.median, s.max};
}

TableRow row_of(const Result& result) {
  TableRow row;
  row.result = &result;
  row.images_per_s = rate_over_rounds(result.rounds);
  std::vector<double> steps;
  std::vector<double> efficiencies;
  for (const Round& round : result.rounds) {
    steps.push_back(round.throughput.step_ms_p50);
    if (round.efficiency_vs_none) efficiencies.push_back(*round.efficiency_vs_none);
  }
  row.step_ms = median_of(steps);
  if (!efficiencies.empty()) row.efficiency_vs_none = median_of(efficiencies);
  row.exposed_ms = account_of(result).exposed_comm_ms;
  row.hidden_ms = account_of(result).hidden_comm_ms;
  const auto& memory = result.rounds.back().throughput.peak_memory_bytes;
  row.memory_bytes = *std::max_element(memory.begin(), memory.end());
  return row;
}

/// Four significant digits at least: "3067", "123.4", "92.51".
std::string text_of_rate(double images_per_s) {
  const int decimals = images_per_s >= 1000 ? 0 : images_per_s >= 100 ? 1 : 2;
  return fmt::format("{:.{}f}", images_per_s, decimals);
}

std::string text_of(const Spread& rate) {
  const std::string middle = text_of_rate(rate.median);
  if (rate.low == rate.high) return middle;
  return fmt::format("{} ({}-{})", middle, text_of_rate(rate.low), text_of_rate(rate.high));
}

/// Conditions that the bench's configurations share, and the units of the figures.
std::string title_of(const std::vector<Result>& results) {
  const StepOptions& o = results.front().configuration.options;
  std::size_t rounds = 0;
  bool interval = false;  // too few steps have none
  for (const Result& result : results) {
    rounds = std::max(rounds, result.rounds.size());
    interval = interval || (result.measured() && result.rounds.front().throughput.interval);
  }
  return fmt::format("\n{}, {}, batch {}, {}x{} pixels: {}\n", o.model.model, o.model.precision,
                     o.global_batch > 0 ? fmt::format("{} over all ranks", o.global_batch)
                                        : fmt::format("{} per rank", o.batch_size),
                     o.model.image_size, o.model.image_size,
                     rounds == 1 ? interval ? "one round (95 % interval of its steps)"
                                            : "one round (too few steps for an interval)"
                                 : fmt::format("median of {} rounds (lowest-highest)", rounds));
}

/// "INCONCLUSIVE, skipped: CAUSE (none on 3 ranks; ddp on 3 ranks)", one per cause.
std::vector<std::string> lines_of_skipped(const std::vector<Result>& results) {
  std::vector<std::pair<std::string, std::vector<std::string>>> causes;
  for (const Result& result : results) {
    if (result.skipped.empty()) continue;
    const auto same = std::find_if(causes.begin(), causes.end(), [&](const auto& cause) {
      return cause.first == result.skipped;
    });
    auto& labels =
        (same == causes.end() ? causes.emplace_back(result.skipped, std::vector<std::string>())
                              : *same)
            .second;
    labels.push_back(label_of(result.configuration));
  }
  std::vector<std::string> lines;
  for (const auto& [cause, labels] : causes)
    lines.push_back(fmt::format("{}, skipped: {} ({})", name_of(Outcome::inconclusive), cause,
                                fmt::join(labels, "; ")));
  return lines;
}

}  // namespace

std::vector<TableRow> rows_of(const std::vector<Result>& results) {
  std::vector<TableRow> rows;
  for (const Result& result : results)
    if (result.measured()) rows.push_back(row_of(result));
  std::stable_sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) {
    return a.images_per_s.median > b.images_per_s.median;
  });
  return rows;
}

const Breakdown& account_of(const Result& result) {
  const auto median = [&](const auto& time_ms) {
    std::vector<double> times;
    for (const Round& round : result.rounds) times.push_back(time_ms(round.breakdown));
    return median_of(times);
  };
  const auto step_ms = [](const Breakdown& b) { return b.step_ms; };
  const auto none_ms = [](const Breakdown& b) { return b.none_step_ms.value_or(0); };
  const double step = median(step_ms);
  const double none = median(none_ms);
  const auto far_ms = [&](const Round& round) {
    const Breakdown& b = round.breakdown;
    return std::abs(step_ms(b) - step) + std::abs(none_ms(b) - none);
  };
  const double nearest_ms = far_ms(*std::ranges::min_element(result.rounds, {}, far_ms));
  constexpr double kRounding_ms = 1e-9;  // of two rounds, which are as near
  return std::ranges::min_element(result.rounds, {},
                                  [&](const Round& round) {
                                    const bool is_near = far_ms(round) <= nearest_ms + kRounding_ms;
                                    return std::pair(!is_near, step_ms(round.breakdown));
                                  })
      ->breakdown;
}

std::string certificate_of(const Result& result) {
  if (!result.certificate) return kUnmeasured;
  return result.certificate->applies() ? name_of(result.certificate->outcome) : "waived";
}

std::string headline(const Job& job) {
  const TimingOptions& timing = job.timing;
  const double warmup_s = warmup_seconds_of(timing, job.backend.kind);
  const std::string seconds = warmup_s > 0 ? fmt::format(" and at least {:g} s", warmup_s) : "";
  return wrapped(fmt::format("compare: {}; {} timed steps after {}{}, {} repeat{}",
                             job.data.summary(), timing.iterations, timing.warmup, seconds,
                             job.repeats, job.repeats == 1 ? "" : "s interleaved"),
                 2) +
         "\n" + wrapped(text_of_machine(job.backend, job.session.hosts()), 2);
}

std::string table_of(const std::vector<Result>& results) {
  std::size_t label_width = std::string("strategy").size();
  for (const Result& result : results)
    label_width = std::max(label_width, strategy_label(result.configuration).size());
  const std::vector<Column> columns{{"", "strategy", static_cast<int>(label_width)},
                                    {"", "ranks", 5},
                                    {"", "images/s", 20},
                                    {"step", "ms", 8},
                                    {"% of", "none", 7},
                                    {"exposed", "comm. ms", 8},
                                    {"hidden", "ms", 7},
                                    {"memory", "per rank", 9},
                                    {"certi-", "ficate", 6}};
  std::string text = title_of(results) + heading(columns);
  for (const TableRow& r : rows_of(results)) {
    const auto ms = [](double value) { return fmt::format("{:.{}f}", value, value < 100 ? 2 : 1); };
    text += row(
        columns,
        {strategy_label(r.result->configuration), fmt::format("{}", r.result->configuration.ranks),
         text_of(r.images_per_s), ms(r.step_ms),
         r.efficiency_vs_none ? fmt::format("{:.1f}", 100 * *r.efficiency_vs_none) : kUnmeasured,
         ms(r.exposed_ms), ms(r.hidden_ms), readable_bytes(r.memory_bytes),
         certificate_of(*r.result)});
  }
  return text;
}

std::vector<std::string> lines_of_verdicts(const std::vector<Result>& results) {
  int passed = 0;
  int waived = 0;
  int uncertified = 0;
  std::vector<std::string> lines;
  for (const Result& result : results) {
    if (!result.skipped.empty()) continue;
    const bool certified = result.certificate.has_value();
    if (result.failure.empty() && !certified) ++uncertified;
    if (certified && certificate_of(result) == name_of(Outcome::pass)) ++passed;
    if (certified && certificate_of(result) == "waived") ++waived;
    Verdict verdict = verdict_of(result);
    if (verdict.outcome == Outcome::pass || (result.failure.empty() && !certified)) continue;
    verdict.name = label_of(result.configuration);
    lines.push_back(line_of(verdict));
  }
  if (uncertified > 0)
    lines.push_back(fmt::format("{}: {} configuration{} without a certificate",
                                name_of(Outcome::inconclusive), uncertified,
                                uncertified == 1 ? "" : "s"));
  for (const std::string& skipped : lines_of_skipped(results)) lines.push_back(skipped);
  if (lines.empty())
    lines.push_back(fmt::format("No configuration failed. Certificates: {} passed, {} waived.",
                                passed, waived));
  return lines;
}

}  // namespace shakedown::training
