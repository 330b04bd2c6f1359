#include "training/programs/comparison.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "common/text_table.hpp"
#include "training/programs/describe.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kUnmeasured = "-";  // not measured

template <class Value>
double median_over(const std::vector<Round>& rounds, Value&& value_of) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(value_of(round));
  return median_of(values);
}

double images_per_s(const Round& round) { return round.throughput.images_per_s; }

/// Four significant digits at least: "3067", "123.4", "92.51".
std::string text_of_rate(double images_per_s) {
  const int decimals = images_per_s >= 1000 ? 0 : images_per_s >= 100 ? 1 : 2;
  return fmt::format("{:.{}f}", images_per_s, decimals);
}

/// The middle of the rounds and the lowest and highest; of one round its 95 % interval, if any.
std::string text_of_rates(const std::vector<Round>& rounds) {
  std::vector<double> rates;
  for (const Round& round : rounds) rates.push_back(images_per_s(round));
  const Summary s = summarize(rates);
  Interval around{s.min, s.max};
  if (const auto& own = rounds.front().throughput.interval; rounds.size() == 1 && own)
    around = *own;
  const std::string middle = text_of_rate(s.median);
  if (around.low == around.high) return middle;
  return fmt::format("{} ({}-{})", middle, text_of_rate(around.low), text_of_rate(around.high));
}

/// The outcome's name, "waived", or "-" without one.
std::string certificate_of(const Result& result) {
  if (!result.certificate) return kUnmeasured;
  return result.certificate->applies() ? name_of(result.certificate->outcome) : "waived";
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
  std::map<std::string, std::vector<std::string>> causes;
  for (const Result& result : results)
    if (!result.skipped.empty()) causes[result.skipped].push_back(label_of(result.configuration));
  std::vector<std::string> lines;
  for (const auto& [cause, labels] : causes)
    lines.push_back(fmt::format("{}, skipped: {} ({})", name_of(Outcome::inconclusive), cause,
                                fmt::join(labels, "; ")));
  return lines;
}

}  // namespace

const Breakdown& account_of(const Result& result) {
  const auto step_ms = [](const Breakdown& b) { return b.step_ms; };
  const auto none_ms = [](const Breakdown& b) { return b.none_step_ms.value_or(0); };
  const double step = median_over(result.rounds, [&](auto& r) { return step_ms(r.breakdown); });
  const double none = median_over(result.rounds, [&](auto& r) { return none_ms(r.breakdown); });
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

std::string headline(const Job& job) {
  const TimingOptions& timing = job.options.train.timing;
  const double warmup_s = warmup_seconds_of(timing, job.backend.kind);
  const std::string seconds = warmup_s > 0 ? fmt::format(" and at least {:g} s", warmup_s) : "";
  return wrapped(fmt::format("compare: {}; {} timed steps after {}{}, {} repeat{}",
                             job.data.summary(), timing.iterations, timing.warmup, seconds,
                             job.options.repeats, job.options.repeats == 1 ? "" : "s interleaved"),
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
  std::vector<const Result*> fastest_first;
  for (const Result& result : results)
    if (result.measured()) fastest_first.push_back(&result);
  std::ranges::stable_sort(fastest_first, std::greater<>(),
                           [](const Result* r) { return median_over(r->rounds, images_per_s); });
  const auto ms = [](double value) { return fmt::format("{:.{}f}", value, value < 100 ? 2 : 1); };
  std::string text = title_of(results) + heading(columns);
  for (const Result* r : fastest_first) {
    const Throughput& last = r->rounds.back().throughput;
    const Breakdown& account = account_of(*r);
    std::vector<double> efficiencies;
    for (const Round& round : r->rounds)
      if (round.efficiency_vs_none) efficiencies.push_back(*round.efficiency_vs_none);
    text += row(
        columns,
        {strategy_label(r->configuration), fmt::format("{}", r->configuration.ranks),
         text_of_rates(r->rounds),
         ms(median_over(r->rounds, [](auto& of) { return of.throughput.step_ms_p50; })),
         efficiencies.empty() ? kUnmeasured : fmt::format("{:.1f}", 100 * median_of(efficiencies)),
         ms(account.exposed_comm_ms), ms(account.hidden_comm_ms),
         readable_bytes(*std::ranges::max_element(last.peak_memory_bytes)), certificate_of(*r)});
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
    lines.push_back(fmt::format("{}: {} without a certificate", name_of(Outcome::inconclusive),
                                counted(uncertified, "configuration")));
  for (const std::string& skipped : lines_of_skipped(results)) lines.push_back(skipped);
  if (lines.empty())
    lines.push_back(fmt::format("No configuration failed. Certificates: {} passed, {} waived.",
                                passed, waived));
  return lines;
}

}  // namespace shakedown::training
