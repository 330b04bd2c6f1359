#include "training/programs/comparison_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/progress.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "training/exchange/strategy.hpp"
#include "training/measure/certificate.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/fitted_model.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kNone = "-";  // not measured

/// Of the rounds that have it.
std::vector<double> values_of(const Result& result, const char* key) {
  std::vector<double> values;
  for (const Json& step : result.steps)
    if (step.contains(key) && step[key].is_number() && std::isfinite(step[key].get<double>()))
      values.push_back(step[key].get<double>());
  return values;
}

/// "95.3 (94.8-95.7)": median, lowest and highest, with so many decimals.
std::string spread(std::vector<double> values, double unit, int decimals) {
  if (values.empty()) return kNone;
  for (double& value : values) value /= unit;
  const Summary s = summarize(values);
  std::string middle = fmt::format("{:.{}f}", s.median, decimals);
  if (s.min == s.max) return middle;
  return fmt::format("{} ({:.{}f}-{:.{}f})", middle, s.min, decimals, s.max, decimals);
}

std::string percent(const Result& result, const char* key) {
  return spread(values_of(result, key), 0.01, 1);
}

std::string step_ms(const Result& result) {
  const auto values = values_of(result, "step_ms_p50");
  return spread(values, 1, median_of(values) < 100 ? 2 : 1);
}

/// Rank 0's value, which may be a server's, and the highest of the others; of the last round.
struct Bytes {
  std::string first = kNone, others = kNone;
};
Bytes bytes_of(const Result& result, const char* key) {
  const auto values = result.steps.back().at(key).get<std::vector<double>>();
  Bytes bytes;
  bytes.first = readable_bytes(values[0]);
  if (values.size() > 1)
    bytes.others = readable_bytes(*std::max_element(values.begin() + 1, values.end()));
  return bytes;
}

/// N times one rank alone.
std::string ideal_of(const Result& result, const Result& single) {
  const auto rates = values_of(single, "images_per_s");
  return rates.empty() ? kNone
                       : fmt::format("{:.1f}", result.configuration.ranks * median_of(rates));
}

std::string certificate_of(const Result& result) {
  if (result.certificate.is_null()) return kNone;
  const Json& pass = result.certificate.at("pass");
  return pass.is_null() ? "waived" : name_of(pass == true ? Outcome::pass : Outcome::fail);
}

std::string title_of(const TrainOptions& o, const Job& job) {
  return fmt::format("\n{}, {}, batch {}, {}x{} pixels: {} repeats, median (lowest-highest)\n",
                     o.model.model, o.model.precision,
                     o.global_batch > 0 ? fmt::format("{} over all ranks", o.global_batch)
                                        : fmt::format("{} a rank", o.batch_size),
                     o.model.image_size, o.model.image_size, job.options.repeats);
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

double rate_of(const Result& result) {
  return result.measured() ? median_of(values_of(result, "images_per_s")) : 0;
}

/// The fastest first; what was not measured last.
std::vector<const Result*> by_rate(const std::vector<Result>& results) {
  std::vector<const Result*> sorted;
  for (const Result& result : results) sorted.push_back(&result);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Result* a, const Result* b) { return rate_of(*a) > rate_of(*b); });
  return sorted;
}

std::string speed_table(const std::vector<Result>& results, BackendKind backend) {
  const std::vector<Column> columns{
      strategy_column(results),
      {"", "ranks", 5},
      {"images/s", "total", 10},
      {"images/s", backend == BackendKind::gpu ? "per GPU" : "per rank", 9},
      {"ideal:", "N x single", 10},
      {"step", "ms", 22},
      {"% of none,", "as many ranks", 20},
      {"% of", "N x single", 20},
  };
  const Result& single = results.front();
  std::string text = heading(columns);
  for (const Result* each : by_rate(results)) {
    const Result& result = *each;
    std::vector<std::string> cells = row_start(result);
    if (!result.measured()) {
      text += row(columns, cells);
      text.insert(text.size() - 1, "   skipped: " + result.skipped);
      continue;
    }
    const double rate = rate_of(result);
    cells.insert(
        cells.end(),
        {fmt::format("{:.1f}", rate), fmt::format("{:.1f}", rate / result.configuration.ranks),
         ideal_of(result, single), step_ms(result), percent(result, "efficiency_vs_none"),
         percent(result, "efficiency_vs_single")});
    text += row(columns, cells);
  }
  return text;
}

/// Of the configurations that exchange on the most ranks and did not fail; several where the rounds
/// of the fastest and theirs overlap. Empty where there is nothing to choose from.
std::string fastest_of(const std::vector<Result>& results) {
  int ranks = 0;
  for (const Result& r : results)
    if (r.measured()) ranks = std::max(ranks, r.configuration.ranks);
  std::vector<const Result*> candidates;
  for (const Result* r : by_rate(results))
    if (r->measured() && r->configuration.ranks == ranks && r->configuration.strategy() != "none" &&
        verdict_of(*r).outcome != Outcome::fail)
      candidates.push_back(r);
  if (candidates.size() < 2) return "";
  const double slowest_round = summarize(values_of(*candidates.front(), "images_per_s")).min;
  std::vector<std::string> labels;
  for (const Result* r : candidates)
    if (summarize(values_of(*r, "images_per_s")).max >= slowest_round)
      labels.push_back(strategy_label(r->configuration));
  const bool once = candidates.front()->steps.size() == 1;
  return fmt::format("fastest on {} ranks: {}{}\n", ranks, fmt::join(labels, "; "),
                     once                ? " (one round: --repeats tells how far it varies)"
                     : labels.size() > 1 ? " (their rounds overlap)"
                                         : "");
}

/// Who measured the bytes of ranks that exchange with others.
std::string sources_of(const std::vector<Result>& results) {
  const auto any = [&](const char* source) {
    return std::any_of(results.begin(), results.end(), [&](const Result& r) {
      return r.measured() && r.configuration.ranks > 1 &&
             r.steps.back().at("bytes_source") == source;
    });
  };
  const char* nvlink = "by the GPUs' own counters of NVLink";
  const char* counted = "counted by the communicator, as rings, chains and messages send";
  if (!any("nvlink")) return counted;
  if (!any("communicator")) return nvlink;
  return fmt::format("{}, where the record's bytes_source is nvlink; else {}", nvlink, counted);
}

std::string cost_table(const std::vector<Result>& results, long epoch_images) {
  const std::vector<Column> columns{
      strategy_column(results),
      {"", "ranks", 5},
      {"", "an epoch", 8},
      {"memory,", "rank 0", 10},
      {"memory,", "others", 10},
      {"joules", "an image", 8},
      {"sent, theory:", "by rank 0", 13},
      {"sent, theory:", "by others", 13},
      {"sent, measured:", "by rank 0", 15},
      {"sent, measured:", "by others", 15},
      {"", "certificate", 11},
  };
  std::string text = heading(columns);
  for (const Result& result : results) {
    if (!result.measured()) continue;
    const Bytes memory = bytes_of(result, "peak_memory_bytes");
    const Bytes sent = bytes_of(result, "bytes_per_step_predicted");
    const Bytes measured = bytes_of(result, "bytes_per_step_measured");
    const auto joules = values_of(result, "joules_per_image");
    const auto epoch_s = values_of(result, "epoch_s");
    std::vector<std::string> cells = row_start(result);
    cells.insert(cells.end(),
                 {readable_duration(median_of(epoch_s)), memory.first, memory.others,
                  joules.empty() ? kNone : fmt::format("{:.3f}", median_of(joules)), sent.first,
                  sent.others, measured.first, measured.others, certificate_of(result)});
    text += row(columns, cells);
  }
  return text + fmt::format(
                    "an epoch: {} images; sent a step, in theory: gradients and weights; "
                    "measured: {}\n",
                    epoch_images, sources_of(results));
}

std::string settings_table(const std::vector<Result>& results) {
  const std::vector<Column> columns{
      {"", "setting", 24}, {"images/s,", "% of plain", 20}, {"step", "ms", 22}};
  std::string rows;
  const Configuration* last = nullptr;
  for (const Result& result : results) {
    if (!result.measured() || result.configuration.setting.empty()) continue;
    last = &result.configuration;
    rows += row(columns, {last->setting, percent(result, "speedup_vs_plain"), step_ms(result)});
  }
  if (last == nullptr) return "";
  Configuration without = *last;
  without.setting.clear();
  return fmt::format("\nwhat a setting makes of {}\n", label_of(without)) + heading(columns) + rows;
}

/// Of the round with the median step, of two in the middle the shorter one: medians of each term
/// over the rounds would not add up.
const Json& account_of(const Result& result) {
  std::vector<const Json*> rounds;
  for (const Json& breakdown : result.breakdowns) rounds.push_back(&breakdown);
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>((rounds.size() - 1) / 2);
  std::nth_element(rounds.begin(), middle, rounds.end(), [](const Json* a, const Json* b) {
    return a->at("step_ms").get<double>() < b->at("step_ms").get<double>();
  });
  return **middle;
}

std::string term(const Json& account, const char* key) {
  return account.contains(key) ? fmt::format("{:.2f}", account[key].get<double>()) : kNone;
}

std::string percent_of(const Json& account, const char* key) {
  return account.contains(key) ? fmt::format("{:.1f}", 100 * account[key].get<double>()) : kNone;
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
    const Json& a = account_of(r);
    std::vector<std::string> cells = row_start(r);
    cells.insert(cells.end(),
                 {term(a, "step_ms"), term(a, "compute_ms"), term(a, "exposed_comm_ms"),
                  term(a, "interference_ms"), term(a, "input_stall_ms"), term(a, "optimizer_ms"),
                  term(a, "residual_ms"), percent_of(a, "residual"), term(a, "hidden_comm_ms"),
                  percent_of(a, "interference_slowdown"), term(a, "comm_alone_ms"),
                  term(a, "serial_step_ms"), term(a, "none_step_ms")});
    const bool comparable = comparable_with_none(r, backend);
    if (!comparable)
      for (const std::size_t of_none : {3, 5, 8, 9}) cells[of_none] = kNone;
    text += row(columns, cells);
    if (!comparable)
      text.insert(text.size() - 1,
                  "   compute not comparable with none: the server leaves its share of the host");
  }
  if (backend == BackendKind::cpu)
    text +=
        "the cpu backend overlaps no exchange with computing: ddp is an all-reduce in buckets\n";
  for (const Result& r : results)
    if (r.measured() && r.configuration.ranks > 1 &&
        find_strategy(r.configuration.strategy()).bucketed)
      text += fmt::format("{}, ms since the step began:\n{}", label_of(r.configuration),
                          table_of_buckets(bucket_fields(r.profiles.back().steps)));
  return text;
}

}  // namespace

std::string headline(const Job& job) {
  const TrainOptions& o = job.options.train;
  const double seconds = warmup_seconds_of(o, job.backend.kind);
  return fmt::format(
      "compare: {}; {} timed steps after {}{}, {} repeats interleaved\n"
      "on {}, {} ({}), {}",
      job.data.summary(), o.iterations, o.warmup,
      seconds > 0 ? fmt::format(" and at least {:g} s", seconds) : "", job.options.repeats,
      text_of_ranks(job.session.hosts()), job.backend.remark, job.backend.world->transport(),
      job.backend.device->identity().model);
}

std::string strategy_label(const Configuration& c) {
  const std::string& strategy = c.strategy();
  if (strategy == "none" && c.ranks == 1) return "none (single)";
  if (!find_strategy(strategy).bucketed) return strategy;
  return fmt::format("{}, {:g} MiB{}{}", strategy, c.options.strategy.bucket_cap_mb,
                     c.setting.empty() ? "" : ", ", c.setting);
}

std::string label_of(const Configuration& c) {
  return fmt::format("{} on {} rank{}", strategy_label(c), c.ranks, c.ranks == 1 ? "" : "s");
}

std::string table_of(const std::vector<Result>& results, const Job& job) {
  std::string text = title_of(results.front().configuration.options, job) +
                     speed_table(results, job.backend.kind) + fastest_of(results);
  if (std::any_of(results.begin(), results.end(), [](const Result& r) { return r.measured(); }))
    text += "\n" + cost_table(results, job.epoch_images) + settings_table(results) +
            time_table(results, job.backend.kind);
  const auto unproved = std::count_if(results.begin(), results.end(), [](const Result& r) {
    return r.measured() && r.failure.empty() && r.certificate.is_null();
  });
  if (unproved > 0)
    text += fmt::format("{}: {} configuration{} without a certificate\n",
                        name_of(Outcome::inconclusive), unproved, unproved == 1 ? "" : "s");
  for (const Result& result : results) {
    Verdict verdict = verdict_of(result);
    const bool told =
        !result.skipped.empty() || (result.failure.empty() && result.certificate.is_null());
    if (verdict.outcome == Outcome::pass || told) continue;
    verdict.name = label_of(result.configuration);
    text += line_of(verdict) + "\n";
    if (!result.certificate.is_null()) text += summary_of_certificate(result.certificate);
  }
  return text;
}

}  // namespace shakedown::training
