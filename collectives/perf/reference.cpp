#include "collectives/perf/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "collectives/perf/collective_record.hpp"
#include "common/error.hpp"
#include "common/statistics.hpp"

namespace shakedown::collectives {
namespace {

/// Conditions that must be equal for a row's times to be comparable.
constexpr const char* kConditions[] = {"backend",
                                       "device",
                                       "transport",
                                       "world_size",
                                       "nodes",
                                       "ranks_per_node",
                                       "launch_mode",
                                       "registration",
                                       "aggregate",
                                       "blocking",
                                       "average",
                                       "ctas",
                                       "iterations_per_sample"};

constexpr std::size_t kFewest = 6;    // samples of which an interval of the median can be made
constexpr double kMostChance = 0.05;  // of a sweep in which a row is slower by chance

bool same(const Json& a, const Json& b, const char* key) {
  return a.contains(key) && b.contains(key) && a.at(key) == b.at(key);
}

/// The key of a row.
std::string key_of(const Json& collective) {
  std::string key;
  for (const char* part : {"operation", "dtype", "reduction", "root", "bytes", "in_place"})
    key += json_text(collective.value(part, Json())) + " ";
  return key;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

std::string differences(const Json& reference, const Json& here) {
  std::vector<std::string> found;
  for (const char* key : kConditions)
    if (!reference.contains(key))
      found.push_back(fmt::format("its {} is not recorded", key));
    else if (!same(reference, here, key))
      found.push_back(fmt::format("{} is {} there, {} here", key, text_of(reference.at(key)),
                                  text_of(here.at(key))));
  // Recorded only over MPI.
  const Json there = reference.value("mpi_algorithm", Json("none"));
  const Json mine = here.value("mpi_algorithm", Json("none"));
  if (there != mine)
    found.push_back(
        fmt::format("mpi_algorithm is {} there, {} here", text_of(there), text_of(mine)));
  return fmt::format("{}", fmt::join(found, "; "));
}

/// The order statistics x(k) and x(n+1-k) hold the median with a probability of 95 % at least
/// (David & Nagaraja, Order Statistics, 7.1).
Interval median_interval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  std::size_t k = 0;
  double term = std::pow(0.5, n);  // of the binomial (n, 1/2)
  for (double below = term; 1 - 2 * below >= 0.95; ++k) {
    term *= (n - static_cast<double>(k)) / static_cast<double>(k + 1);
    below += term;
  }
  k = std::max<std::size_t>(k, 1);
  return {samples[k - 1], samples[samples.size() - k]};
}

Interval range_of(std::span<const double> samples) {
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  return {*least, *most};
}

bool has_interval(std::span<const double> a, std::span<const double> b) {
  return std::min(a.size(), b.size()) >= kFewest;
}

/// The probability that samples of one distribution are slower by range in all measurements: that
/// all n of the reference are the lowest n of all.
double chance_of(const ComparedRow& row) {
  if (has_interval(row.measured_us.front(), row.reference_us)) return 0;
  const auto n = static_cast<double>(row.reference_us.size());
  double all = n;
  for (const auto& samples : row.measured_us) all += static_cast<double>(samples.size());
  return std::exp(std::lgamma(n + 1) + std::lgamma(all - n + 1) - std::lgamma(all + 1));
}

/// The "collective" records that were checked. A line that a crash cut is skipped where another run
/// follows.
std::map<std::string, std::vector<Json>> read_rows(const std::string& path,
                                                   const std::string& text) {
  const auto refuse = [&](int number, const char* what) {
    throw UsageError(fmt::format("--reference {}: line {} is not {}", path, number, what));
  };
  std::istringstream in(text);
  std::map<std::string, std::vector<Json>> rows;
  int number = 0;
  int cut = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    Json json = Json::parse(line, nullptr, false);
    const Json kind = json.is_object() ? json.value("kind", Json()) : Json();
    if (cut > 0 && kind != "run") refuse(cut, "JSON");
    cut = json.is_discarded() ? number : 0;
    if (cut > 0) continue;
    if (!kind.is_string()) refuse(number, "a record");
    const Json time = json.value("time_us_p50", Json());
    const Json wrong = json.value("wrong_elements", Json());
    if (kind == "collective" && time.is_number() && wrong.is_number() && wrong.get<double>() == 0)
      rows[key_of(json)].push_back(std::move(json));
  }
  if (cut > 0) refuse(cut, "JSON");
  return rows;
}

}  // namespace

bool is_slower(std::span<const double> samples_us, std::span<const double> reference_us,
               double tolerance_percent) {
  if (median_of(samples_us) <= median_of(reference_us) * (1 + tolerance_percent / 100))
    return false;
  if (!has_interval(samples_us, reference_us))
    return range_of(samples_us).low > range_of(reference_us).high;
  return median_interval({samples_us.begin(), samples_us.end()}).low >
         median_interval({reference_us.begin(), reference_us.end()}).high;
}

bool is_slower(const ComparedRow& row, double tolerance_percent) {
  return std::all_of(row.measured_us.begin(), row.measured_us.end(), [&](const auto& samples_us) {
    return is_slower(samples_us, row.reference_us, tolerance_percent);
  });
}

Verdict judge(const ComparedRow& row, std::size_t rows, double tolerance_percent) {
  std::vector<std::string> medians;
  for (const auto& samples_us : row.measured_us)
    medians.push_back(fmt::format("{:.4g}", median_of(samples_us)));
  const double reference = median_of(row.reference_us);
  Verdict verdict{Scope::operation, row.name, Outcome::pass,
                  fmt::format("{} us, the reference {:.4g} us, tolerance {:g} %",
                              fmt::join(medians, ", then "), reference, tolerance_percent)};
  if (!is_slower(row, tolerance_percent)) {
    if (median_of(row.measured_us.back()) > reference * (1 + tolerance_percent / 100))
      verdict.cause += "; slower, but the samples overlap";
  } else if (static_cast<double>(rows) * chance_of(row) > kMostChance) {
    verdict.outcome = Outcome::inconclusive;
    verdict.cause +=
        fmt::format("; slower, but {} samples of the reference are too few to rule out chance",
                    row.reference_us.size());
    verdict.class_ = Class::config;
    verdict.action = "record the reference with a higher --repeats";
  } else {
    verdict.outcome = Outcome::fail;
  }
  return verdict;
}

Reference::Reference(const std::string& path, const std::string& text, double tolerance_percent)
    : path_(path), tolerance_percent_(tolerance_percent), rows_(read_rows(path, text)) {
  if (rows_.empty())
    throw UsageError(
        fmt::format("--reference {}: holds no collective records that were checked", path));
}

// Finds the row of the last run, if the file has several.
const Json* Reference::find(const Json& collective, std::string& difference) const {
  const auto rows = rows_.find(key_of(collective));
  if (rows == rows_.end()) {
    difference = "no such row";
    return nullptr;
  }
  for (auto row = rows->second.rbegin(); row != rows->second.rend(); ++row)
    if (std::all_of(std::begin(kConditions), std::end(kConditions),
                    [&](const char* key) { return same(*row, collective, key); }))
      return &*row;
  difference = differences(rows->second.back(), collective);
  return nullptr;
}

void Reference::add(const Json& collective, const Trial& trial) {
  std::string difference;
  const Json* reference = find(collective, difference);
  const std::string name = name_of_row(collective);
  if (reference == nullptr) {
    not_compared_[difference].push_back(name);
    return;
  }
  const Json median = Json::array({reference->at("time_us_p50")});
  compared_.push_back({name,
                       trial,
                       reference->value("samples_us", median).get<std::vector<double>>(),
                       {collective.at("samples_us").get<std::vector<double>>()}});
}

std::vector<ComparedRow*> Reference::slower_rows() {
  std::vector<ComparedRow*> slower;
  for (ComparedRow& row : compared_)
    if (is_slower(row, tolerance_percent_)) slower.push_back(&row);
  return slower;
}

std::vector<Verdict> Reference::judge_rows(const std::string& program) {
  std::size_t rows = compared_.size();
  for (const auto& [why, names] : not_compared_) rows += names.size();
  std::vector<Verdict> verdicts;
  for (const ComparedRow& row : compared_)
    verdicts.push_back(judge(row, compared_.size(), tolerance_percent_));
  for (const auto& [why, names] : not_compared_)
    verdicts.push_back({Scope::job, program, Outcome::inconclusive,
                        fmt::format("--reference {}: {} of {} rows not comparable: {} (first: {})",
                                    path_, names.size(), rows, why, names.front()),
                        Class::config,
                        "record a reference with these settings on this kind of machine"});
  compared_.clear();
  not_compared_.clear();
  return verdicts;
}

}  // namespace shakedown::collectives
