#include "training/programs/comparison_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/text_table.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/fitted_model.hpp"

namespace shakedown::training {
namespace {

constexpr double kWorthSaying = 0.01;  // of a step
constexpr double kUnaccounted = 0.5;   // of a step: more says that something else ran

std::string percent(double share) {
  return fmt::format("{:.{}f} %", 100 * share, std::abs(share) < 0.0995 ? 1 : 0);
}

/// Those that may be called the fastest, the fastest first.
std::vector<TableRow> candidates_of(const std::vector<Result>& results) {
  std::vector<TableRow> rows = rows_of(results);
  int ranks = 0;
  for (const TableRow& row : rows) ranks = std::max(ranks, row.result->configuration.ranks);
  std::erase_if(rows, [&](const TableRow& row) {
    const Configuration& c = row.result->configuration;
    return c.ranks != ranks || c.strategy() == "none" ||
           verdict_of(*row.result).outcome == Outcome::fail;
  });
  return rows;
}

std::string label_of(const TableRow& row) { return strategy_label(row.result->configuration); }

/// A part of a step that is not forward or backward.
struct Loss {
  std::string name;
  std::string remedy;
  double ms = 0;
};
std::vector<Loss> losses_of(const Breakdown& b) {
  return {{"exposed communication", "a faster or better hidden exchange", b.exposed_comm_ms},
          {"interference of the exchange", "an exchange that slows no computing",
           b.interference_ms.value_or(0)},
          {"input stall", "faster input (--workers)", b.input_stall_ms},
          {"optimizer", "a faster optimizer", b.optimizer_ms}};
}

bool is_accounted(const Breakdown& b) {
  return std::abs(b.residual_ms()) <= kUnaccounted * b.step_ms;
}

/// "INCONCLUSIVE, skipped: CAUSE (none on 3 ranks; ddp on 3 ranks)", one per cause.
std::vector<std::string> sentences_of_skipped(const std::vector<Result>& results) {
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
    labels.push_back(training::label_of(result.configuration));
  }
  std::vector<std::string> sentences;
  for (const auto& [cause, labels] : causes)
    sentences.push_back(fmt::format("{}, skipped: {} ({})", name_of(Outcome::inconclusive), cause,
                                    fmt::join(labels, "; ")));
  return sentences;
}

}  // namespace

std::string sentence_of_fastest(const std::vector<Result>& results) {
  const std::vector<TableRow> rows = candidates_of(results);
  if (rows.empty()) return "No strategy that exchanges gradients was measured without failure.";
  const TableRow& first = rows.front();
  std::string text =
      fmt::format("fastest on {} rank{}: {}, {} images/s", first.result->configuration.ranks,
                  first.result->configuration.ranks == 1 ? "" : "s", label_of(first),
                  text_of_rate(first.images_per_s.median));
  if (first.efficiency_vs_none)
    text += fmt::format(", {} of none", percent(*first.efficiency_vs_none));
  if (rows.size() == 1) return text + ", with no other to compare with.";
  const auto overlaps = [&](const TableRow& row) {
    return row.images_per_s.high >= first.images_per_s.low;
  };
  std::vector<std::string> level;  // a slower one may spread more
  for (auto row = rows.begin() + 1; row != rows.end(); ++row)
    if (overlaps(*row)) level.push_back(label_of(*row));
  const auto next = std::find_if_not(rows.begin() + 1, rows.end(), overlaps);
  if (!level.empty())
    text += fmt::format(
        "; not distinguishable from {}{}", fmt::join(level, "; "),
        first.result->rounds.size() > 1 ? " (their rounds overlap)" : " (their intervals overlap)");
  if (next == rows.end()) return text + ".";
  return text + fmt::format("; {} is {} slower.", label_of(*next),
                            percent(1 - next->images_per_s.median / first.images_per_s.median));
}

std::string sentence_of_time(const std::vector<Result>& results, BackendKind backend) {
  const std::vector<TableRow> rows = candidates_of(results);
  if (rows.empty()) return "";
  const Result& fastest = *rows.front().result;
  const Breakdown& b = account_of(fastest);
  if (!is_accounted(b))
    return fmt::format(
        "where the time goes: unknown: a traced step of {} took {:.2f} ms and its parts {:.2f} ms; "
        "something else uses this machine, or the steps are too few.",
        label_of(rows.front()), b.step_ms, b.step_ms - b.residual_ms());
  std::vector<std::string> parts{
      fmt::format("forward and backward {}", percent(b.compute_ms / b.step_ms))};
  for (const Loss& loss : losses_of(b))
    if (std::abs(loss.ms) >= kWorthSaying * b.step_ms)
      parts.push_back(fmt::format("{} {}", loss.name, percent(loss.ms / b.step_ms)));
  if (std::abs(b.residual_ms()) >= kWorthSaying * b.step_ms)
    parts.push_back(fmt::format("unexplained {}", percent(b.residual_ms() / b.step_ms)));
  return fmt::format(
      "where the time goes: {:.2f} ms per traced step of {}: {}; {:.2f} ms of communication "
      "hidden{}.",
      b.step_ms, label_of(rows.front()), fmt::join(parts, ", "), b.hidden_comm_ms,
      backend == BackendKind::cpu ? ": the cpu backend overlaps no exchange with computing" : "");
}

std::string sentence_of_gain(const std::vector<Result>& results) {
  const std::vector<TableRow> rows = candidates_of(results);
  if (rows.empty()) return "";
  const Breakdown& b = account_of(*rows.front().result);
  if (!is_accounted(b)) return "";
  std::vector<Loss> losses = losses_of(b);
  std::erase_if(losses, [&](const Loss& loss) { return loss.ms < kWorthSaying * b.step_ms; });
  std::stable_sort(losses.begin(), losses.end(),
                   [](const Loss& x, const Loss& y) { return x.ms > y.ms; });
  if (losses.empty())
    return fmt::format("what would help most: faster computing; all else is below {} of a step.",
                       percent(kWorthSaying));
  std::vector<std::string> gains;
  for (const Loss& loss : losses)
    gains.push_back(
        fmt::format("{} (at most {} of the step)", loss.remedy, percent(loss.ms / b.step_ms)));
  return fmt::format("what would help most: {}.", fmt::join(gains, ", "));
}

std::string sentence_of_noise(const std::vector<Result>& results) {
  const std::vector<TableRow> rows = rows_of(results);
  if (rows.empty()) return "";
  std::vector<double> spreads;
  const Result* widest = nullptr;
  for (const TableRow& row : rows) {
    if (row.result->rounds.size() < 2) continue;
    spreads.push_back((row.images_per_s.high - row.images_per_s.low) / row.images_per_s.median);
    if (spreads.back() == *std::max_element(spreads.begin(), spreads.end())) widest = row.result;
  }
  if (widest == nullptr) return "noise: unknown after one round; --repeats 3 or more shows it.";
  const double most = *std::max_element(spreads.begin(), spreads.end());
  return fmt::format(
      "noise: rounds of one configuration differ by {}{} ({}); smaller differences mean nothing.",
      spreads.size() > 1 ? fmt::format("{} (median) to ", percent(median_of(spreads))) : "",
      percent(most), training::label_of(widest->configuration));
}

std::vector<std::string> sentences_of_failures(const std::vector<Result>& results) {
  int passed = 0;
  int waived = 0;
  int uncertified = 0;
  std::vector<std::string> sentences;
  for (const Result& result : results) {
    if (!result.skipped.empty()) continue;
    const bool certified = result.certificate.has_value();
    if (result.failure.empty() && !certified) ++uncertified;
    if (certified && certificate_of(result) == name_of(Outcome::pass)) ++passed;
    if (certified && certificate_of(result) == "waived") ++waived;
    Verdict verdict = verdict_of(result);
    if (verdict.outcome == Outcome::pass || (result.failure.empty() && !certified)) continue;
    verdict.name = training::label_of(result.configuration);
    sentences.push_back(line_of(verdict));
  }
  if (uncertified > 0)
    sentences.push_back(fmt::format("{}: {} configuration{} without a certificate",
                                    name_of(Outcome::inconclusive), uncertified,
                                    uncertified == 1 ? "" : "s"));
  for (const std::string& skipped : sentences_of_skipped(results)) sentences.push_back(skipped);
  if (sentences.empty())
    sentences.push_back(fmt::format("failed: nothing; {} certificate{} passed, {} waived.", passed,
                                    passed == 1 ? "" : "s", waived));
  return sentences;
}

std::string summary_of(const std::vector<Result>& results, BackendKind backend) {
  std::vector<std::string> sentences{sentence_of_fastest(results),
                                     sentence_of_time(results, backend), sentence_of_gain(results),
                                     sentence_of_noise(results)};
  for (const std::string& sentence : sentences_of_failures(results)) sentences.push_back(sentence);
  std::string text;
  for (const std::string& sentence : sentences)
    if (!sentence.empty()) text += wrapped(sentence, 2) + "\n";
  return text;
}

}  // namespace shakedown::training
