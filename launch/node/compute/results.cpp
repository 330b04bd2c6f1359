#include "launch/node/compute/results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/cores.hpp"
#include "common/error.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "common/throttle_reasons.hpp"

namespace shakedown::node {
namespace {

double number_of(const Json& value) { return value.is_number() ? value.get<double>() : kUnknown; }

Json json_of(const Series& series) {
  Json samples = Json::array();
  for (const Sample& sample : series.samples) {
    const GpuWindow& window = sample.window;
    const auto& reasons = window.throttle_reasons;
    samples.push_back({sample.rate, window.sm_clock_mhz, window.power_w, window.temperature_c,
                       reasons ? Json(*reasons) : Json(), sample.last_over_first});
  }
  return {{"samples", samples}, {"wrong", series.wrong}, {"detail", series.detail}};
}

Series series_of(const Metric& metric, const Json& json) {
  Series series{metric, {}, json.at("wrong"), json.at("detail")};
  for (const Json& values : json.at("samples")) {
    Sample sample;
    sample.rate = number_of(values[0]);
    sample.window.sm_clock_mhz = number_of(values[1]);
    sample.window.power_w = number_of(values[2]);
    sample.window.temperature_c = number_of(values[3]);
    if (values[4].is_number()) sample.window.throttle_reasons = values[4].get<std::uint64_t>();
    sample.last_over_first = number_of(values[5]);
    series.samples.push_back(sample);
  }
  return series;
}

/// "power,heat": what held the clock down; "-": unknown.
std::string limited_by(const std::optional<std::uint64_t>& reasons) {
  if (!reasons) return "-";
  constexpr std::pair<std::uint64_t, const char*> kCauses[] = {
      {throttle::kPowerCap, "power"}, {throttle::kHeat, "heat"}, {throttle::kHardware, "hw"}};
  std::string text;
  for (const auto& [bits, name] : kCauses)
    if ((*reasons & bits) != 0) text += (text.empty() ? "" : ",") + std::string(name);
  return text;
}

double rate_per_ghz(const Series& series, double rate) {
  return rate / typical(series, &GpuWindow::sm_clock_mhz) * 1e3;
}

}  // namespace

double typical(const Series& series, double GpuWindow::*reading) {
  std::vector<double> known;
  for (const Sample& sample : series.samples)
    if (std::isfinite(sample.window.*reading)) known.push_back(sample.window.*reading);
  return known.empty() ? kUnknown : median_of(known);
}

std::optional<std::uint64_t> throttle_reasons_of(const Series& series) {
  std::optional<std::uint64_t> all;
  for (const Sample& sample : series.samples)
    if (sample.window.throttle_reasons) all = all.value_or(0) | *sample.window.throttle_reasons;
  return all;
}

double RankResult::rate(std::size_t metric) const {
  std::vector<double> rates;
  for (const Sample& sample : series[metric].samples) rates.push_back(sample.rate);
  return rates.empty() ? kUnknown : median_of(rates);
}

std::vector<std::string> shared_cores(const std::vector<std::string>& hosts,
                                      const std::vector<std::vector<int>>& cores) {
  std::map<std::string, std::set<int>> of_host;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    of_host[hosts[rank]].insert(cores[rank].begin(), cores[rank].end());
  std::vector<std::string> shares;
  for (const std::string& host : hosts) {
    const auto ranks = static_cast<std::size_t>(std::count(hosts.begin(), hosts.end(), host));
    const std::size_t own = of_host[host].size();
    shares.push_back(own == 0 || ranks <= own ? ""
                                              : fmt::format("{} ranks on {} core{} of {}", ranks,
                                                            own, own == 1 ? "" : "s", host));
  }
  return shares;
}

Results gather(const MpiSession& session, const DeviceIdentity& device,
               const std::vector<std::unique_ptr<RateTest>>& tests) {
  Json mine{{"gpu", device.uuid}, {"model", device.model}, {"series", Json::array()}};
  mine["cores"] = device.uuid.empty() ? allowed_cores() : std::vector<int>{};
  std::vector<Metric> metrics;
  for (const auto& test : tests)
    for (const Series& series : test->series()) {
      mine["series"].push_back(json_of(series));
      metrics.push_back(series.metric);
    }
  Results results;
  std::vector<std::vector<int>> cores;
  const std::vector<std::string> all = session.all_gather(json_text(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Json of_rank = Json::parse(all[rank]);
    RankResult result{session.hosts()[rank], of_rank.at("gpu"), of_rank.at("model"), {}};
    for (std::size_t m = 0; m < metrics.size(); ++m)
      result.series.push_back(series_of(metrics[m], of_rank.at("series")[m]));
    results.push_back(std::move(result));
    cores.push_back(of_rank.at("cores"));
  }
  const std::vector<std::string> shares = shared_cores(session.hosts(), cores);
  for (std::size_t rank = 0; rank < results.size(); ++rank) results[rank].shares = shares[rank];
  return results;
}

std::string table_of(const Results& results) {
  const std::vector<Column> columns{{"", "test", 30},     {"", "unit", 8},      {"", "median", 8},
                                    {"lowest", "", 8},    {"on", "rank", 4},    {"highest", "", 8},
                                    {"on", "rank", 4},    {"SM", "MHz", 5},     {"", "W", 4},
                                    {"rate /", "GHz", 7}, {"limited", "by", 13}};
  const auto shown = [](double value, const char* format) {
    return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : std::string("-");
  };
  std::string text = heading(columns);
  for (std::size_t metric = 0; metric < results.front().series.size(); ++metric) {
    std::vector<double> rates;
    for (const RankResult& result : results) rates.push_back(result.rate(metric));
    const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
    const double median = median_of(rates);
    // the GPU whose rate is nearest to the median
    const auto nearest = std::min_element(rates.begin(), rates.end(), [&](double a, double b) {
      return std::fabs(a - median) < std::fabs(b - median);
    });
    const Series& typical_one =
        results[static_cast<std::size_t>(nearest - rates.begin())].series[metric];
    text += row(columns, {typical_one.metric.name, typical_one.metric.unit, shown(median, "{:.4g}"),
                          shown(*low, "{:.4g}"), std::to_string(low - rates.begin()),
                          shown(*high, "{:.4g}"), std::to_string(high - rates.begin()),
                          shown(typical(typical_one, &GpuWindow::sm_clock_mhz), "{:.0f}"),
                          shown(typical(typical_one, &GpuWindow::power_w), "{:.0f}"),
                          shown(rate_per_ghz(typical_one, *nearest), "{:.1f}"),
                          limited_by(throttle_reasons_of(typical_one))});
  }
  return text;
}

Json round_record_of(const MpiSession& session, const Series& series) {
  const Sample& own = series.samples.back();
  const Json mine{own.rate,
                  own.window.sm_clock_mhz,
                  own.window.power_w,
                  own.window.temperature_c,
                  own.last_over_first,
                  series.wrong.empty()};
  Json fields{{"test", series.metric.name}, {"unit", series.metric.unit}};
  const char* const keys[] = {"rates",         "sm_clock_mhz",    "power_w",
                              "temperature_c", "last_over_first", "correct"};
  for (const std::string& text : session.all_gather(json_text(mine))) {
    const Json of_rank = Json::parse(text);
    for (std::size_t i = 0; i < std::size(keys); ++i) fields[keys[i]].push_back(of_rank[i]);
  }
  return fields;
}

Json record_of(const RankResult& result, std::size_t metric) {
  const Series& series = result.series[metric];
  Json samples = Json::array();
  for (const Sample& sample : series.samples) samples.push_back(sample.rate);
  const double rate = result.rate(metric);
  Json fields{{"host", result.host},
              {"model", result.model},
              {"test", series.metric.name},
              {"unit", series.metric.unit},
              {"rate", rate},
              {"samples", samples},
              {"correct", series.wrong.empty()}};
  if (!series.detail.empty())
    fields[series.metric.follows_clock ? "algorithm" : "numa"] = series.detail;
  if (!result.shares.empty()) fields["shares"] = result.shares;
  if (!result.in_use.empty()) fields["in_use"] = result.in_use;
  if (result.gpu.empty()) return fields;
  fields["gpu"] = result.gpu;
  fields.update({{"sm_clock_mhz", typical(series, &GpuWindow::sm_clock_mhz)},
                 {"power_w", typical(series, &GpuWindow::power_w)},
                 {"temperature_c", typical(series, &GpuWindow::temperature_c)},
                 {"throttle_reasons", text_of_throttle_reasons(throttle_reasons_of(series))},
                 {"rate_per_ghz", rate_per_ghz(series, rate)}});
  return fields;
}

}  // namespace shakedown::node
