#include "training/programs/comparison_details.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/text_table.hpp"
#include "training/exchange/strategy.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/fitted_model.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kNone = "-";  // not measured

/// The values of the rounds that have one.
template <class Measure>
std::vector<double> values_of(const Result& result, Measure&& measure) {
  std::vector<double> values;
  for (const Round& round : result.rounds)
    if (const std::optional<double> value = measure(round); value && std::isfinite(*value))
      values.push_back(*value);
  return values;
}

/// "95.3 (94.8-95.7)": median, lowest and highest, with this many decimals.
std::string spread(const std::vector<double>& values, double unit, int decimals) {
  if (values.empty()) return kNone;
  const Summary s = summarize(values);
  std::string middle = fmt::format("{:.{}f}", s.median / unit, decimals);
  if (s.min == s.max) return middle;
  return fmt::format("{} ({:.{}f}-{:.{}f})", middle, s.min / unit, decimals, s.max / unit,
                     decimals);
}

std::string percent(const Result& result, std::optional<double> Round::*ratio) {
  return spread(values_of(result, [&](const Round& r) { return r.*ratio; }), 0.01, 1);
}

double images_per_s(const Result& result) {
  return median_of(
      values_of(result, [](const Round& r) { return std::optional(r.throughput.images_per_s); }));
}

std::string step_ms(const Result& result) {
  const auto values =
      values_of(result, [](const Round& r) { return std::optional(r.throughput.step_ms_p50); });
  return spread(values, 1, median_of(values) < 100 ? 2 : 1);
}

/// Rank 0's value, which may be a server's, and the highest of the others.
struct Bytes {
  std::string first = kNone, others = kNone;
};
Bytes bytes_of(const std::vector<double>& values) {
  Bytes bytes;
  if (!std::isfinite(values[0])) return bytes;
  bytes.first = readable_bytes(values[0]);
  if (values.size() > 1)
    bytes.others = readable_bytes(*std::max_element(values.begin() + 1, values.end()));
  return bytes;
}

std::optional<double> joules(const Round& round) {
  if (!round.throughput.health) return std::nullopt;
  return round.throughput.health->joules_per_image;
}

Column strategy_column(const std::vector<Result>& results) {
  constexpr std::size_t kUsual = 24;
  std::size_t width = kUsual;
  for (const Result& result : results)
    width = std::max(width, strategy_label(result.configuration).size());
  return {"", "strategy", static_cast<int>(width)};
}

std::vector<std::string> row_start(const Result& result) {
  return {strategy_label(result.configuration), std::to_string(result.configuration.ranks)};
}

std::string scaling_table(const std::vector<Result>& results, BackendKind backend) {
  const std::vector<Column> columns{
      strategy_column(results),
      {"", "ranks", 5},
      {"images/s", backend == BackendKind::gpu ? "per GPU" : "per rank", 9},
      {"ideal:", "N x single", 10},
      {"step", "ms", 22},
      {"% of none,", "same ranks", 20},
      {"% of", "N x single", 20},
  };
  std::string text = "\n" + heading(columns);
  for (const TableRow& each : rows_of(results)) {
    const Result& result = *each.result;
    const int ranks = result.configuration.ranks;
    std::vector<std::string> cells = row_start(result);
    const Result& single = results.front();
    cells.insert(cells.end(),
                 {fmt::format("{:.1f}", images_per_s(result) / ranks),
                  single.measured() ? fmt::format("{:.1f}", ranks * images_per_s(single)) : kNone,
                  step_ms(result), percent(result, &Round::efficiency_vs_none),
                  percent(result, &Round::efficiency_vs_single)});
    text += row(columns, cells);
  }
  return text;
}

/// The source of the measured bytes of ranks that exchange with others, and how they compare with
/// what the communicator counts.
std::string source_of_measured(const std::vector<Result>& results) {
  std::vector<double> shares;
  for (const Result& r : results) {
    if (!r.measured() || r.configuration.ranks == 1) continue;
    const SentBytes& sent = r.rounds.back().throughput.sent;
    for (std::size_t rank = 0; sent.over_nvlink && rank < sent.counted.size(); ++rank)
      if (sent.counted[rank] > 0) shares.push_back(sent.measured[rank] / sent.counted[rank]);
  }
  if (shares.empty()) return "only where all goes over NVLink, whose counters GPUs have";
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return fmt::format(
      "by the GPUs' own counters of NVLink, {:.0f} to {:.0f} % of what the communicator counts",
      100 * *least, 100 * *most);
}

std::string cost_table(const std::vector<Result>& results, long epoch_images) {
  const std::vector<Column> columns{
      strategy_column(results),
      {"", "ranks", 5},
      {"", "an epoch", 8},
      {"memory,", "rank 0", 10},
      {"memory,", "others", 10},
      {"joules", "/image", 8},
      {"sent, theory:", "by rank 0", 13},
      {"sent, theory:", "by others", 13},
      {"sent, measured:", "by rank 0", 15},
      {"sent, measured:", "by others", 15},
      {"", "certificate", 12},
  };
  std::string text = "\n" + heading(columns);
  for (const Result& result : results) {
    if (!result.measured()) continue;
    const Throughput& last = result.rounds.back().throughput;
    const Bytes memory = bytes_of(last.peak_memory_bytes);
    const Bytes sent = bytes_of(last.sent.predicted);
    const Bytes measured = bytes_of(last.sent.measured);
    const auto energies = values_of(result, joules);
    const auto epochs_s =
        values_of(result, [](const Round& r) { return std::optional(r.epoch_s); });
    std::vector<std::string> cells = row_start(result);
    cells.insert(cells.end(),
                 {readable_duration(median_of(epochs_s)), memory.first, memory.others,
                  energies.empty() ? kNone : fmt::format("{:.3f}", median_of(energies)), sent.first,
                  sent.others, measured.first, measured.others, certificate_of(result)});
    text += row(columns, cells);
  }
  return text + fmt::format(
                    "an epoch: {} images; sent per step, in theory: gradients and weights; "
                    "measured: {}\n",
                    epoch_images, source_of_measured(results));
}

std::string fixed(std::optional<double> ms) { return ms ? fmt::format("{:.2f}", *ms) : kNone; }
std::string percent(std::optional<double> share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : kNone;
}

std::string time_table(const std::vector<Result>& results, BackendKind backend) {
  const std::vector<Column> columns{
      strategy_column(results), {"", "ranks", 5},          {"step,", "traced", 8},
      {"=", "compute", 8},      {"+ exposed", "comm.", 9}, {"+ inter-", "ference", 8},
      {"+ input", "stall", 7},  {"+ opti-", "mizer", 7},   {"+ resi-", "dual", 7},
      {"residual", "%", 8},     {"hidden", "comm.", 7},    {"slows", "compute %", 9},
      {"comm.", "alone", 7},    {"no", "overlap", 8},      {"no", "comm.", 7},
  };
  std::string text =
      "\nwhere the time of a step goes, ms, in the round with the median step\n" + heading(columns);
  for (const Result& r : results) {
    if (!r.measured()) continue;
    const Breakdown& a = account_of(r);
    std::vector<std::string> cells = row_start(r);
    cells.insert(cells.end(),
                 {fixed(a.step_ms), fixed(a.compute_ms), fixed(a.exposed_comm_ms),
                  fixed(a.interference_ms), fixed(a.input_stall_ms), fixed(a.optimizer_ms),
                  fixed(a.residual_ms()), percent(a.residual_ms() / a.step_ms),
                  fixed(a.hidden_comm_ms), a.interference_ms ? percent(a.slowdown) : kNone,
                  fixed(a.comm_alone_ms), fixed(a.serial_step_ms), fixed(a.none_step_ms)});
    text += row(columns, cells);
    if (!comparable_with_none(r, backend))
      text.insert(text.size() - 1,
                  "   not comparable with none: the server leaves its share of the host");
  }
  for (const Result& r : results)
    if (r.measured() && r.configuration.ranks > 1 &&
        find_strategy(r.configuration.strategy()).bucketed())
      text += fmt::format("{}, ms since the step began:\n{}", label_of(r.configuration),
                          table_of(bucket_times(r.rounds.back().profile.steps)));
  return text;
}

}  // namespace

std::string settings_table(const std::vector<Result>& results) {
  const std::vector<Column> columns{
      {"", "setting", 24}, {"images/s,", "% of plain", 20}, {"step", "ms", 22}};
  std::string rows;
  const Configuration* last = nullptr;
  for (const Result& result : results) {
    if (!result.measured() || result.configuration.setting.empty()) continue;
    last = &result.configuration;
    rows +=
        row(columns, {last->setting, percent(result, &Round::speedup_vs_plain), step_ms(result)});
  }
  if (last == nullptr) return "";
  Configuration without = *last;
  without.setting.clear();
  return fmt::format("\nsettings compared with {}\n", label_of(without)) + heading(columns) + rows;
}

std::string details_of(const std::vector<Result>& results, const Job& job) {
  std::string text;
  if (std::any_of(results.begin(), results.end(), [](const Result& r) { return r.measured(); }))
    text += scaling_table(results, job.backend.kind) + cost_table(results, job.epoch_images) +
            time_table(results, job.backend.kind);
  for (const Result& result : results)
    if (verdict_of(result).outcome != Outcome::pass && result.certificate)
      text +=
          fmt::format("{}: {}\n", label_of(result.configuration), summary_of(*result.certificate));
  return text;
}

}  // namespace shakedown::training
