#include "launch/node/compute/results.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/host.hpp"
#include "common/judge/series.hpp"
#include "common/nvml.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "launch/node/health/rules/rules.hpp"

namespace shakedown::node {
namespace {

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

std::string shown(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : std::string("-");
}

/// A metric's line.
std::string row_of(const std::vector<Column>& columns,
                   const std::vector<const judge::Observation*>& all, const judge::Limits& limits) {
  const judge::Observation& first = *all.front();
  const judge::Limit* limit = limits.find(first.metric);
  std::vector<std::pair<double, const judge::Observation*>> values;
  for (const judge::Observation* one : all) {
    const double value = judge::statistic_of(
        one->samples, limit != nullptr ? limit->statistic : judge::Statistic::median, false);
    if (std::isfinite(value)) values.emplace_back(value, one);
  }
  if (values.empty())
    return row(columns, {first.metric, first.unit, "-", "-", "", "-", "", "", ""});
  std::sort(values.begin(), values.end());
  const auto& middle = values[values.size() / 2];
  const auto rank = [](const auto& value) {
    return std::to_string(value.second->of.ranks.front());
  };
  const judge::Circumstances& seen = middle.second->seen;
  const double median = (values[(values.size() - 1) / 2].first + middle.first) / 2;
  return row(columns, {first.metric, first.unit, shown(median, "{:.5g}"),
                       shown(values.front().first, "{:.5g}"), rank(values.front()),
                       shown(values.back().first, "{:.5g}"), rank(values.back()),
                       shown(seen.power_w, "{:.0f}"), limited_by(seen.reasons)});
}

}  // namespace

judge::Observation observation_of(const Series& series, const Unit& unit, int look) {
  judge::Observation one = observed(series.metric.name, series.metric.unit, unit);
  one.path_class = series.path_class;
  one.conditions = series.conditions;
  one.peak = series.peak;
  one.look = look;
  one.samples = series.samples;
  one.seen.clock_mhz = series.clock_mhz;
  one.seen.temperature_c = series.window.temperature_c;
  one.seen.power_w = series.window.power_w;
  one.seen.reasons = series.window.throttle_reasons;
  if (!series.wrong.empty()) one.check = judge::Check::wrong;
  if (series.samples.empty()) one.disturbed_by = series.unknown;
  if (series.metric.name.starts_with("product/"))
    for (const LibraryVersion& library :
         library_versions(unit.uuid.empty() ? BackendKind::cpu : BackendKind::gpu))
      if (library.name == "cublas" || library.name == "onednn")
        one.versions[library.name] = library.running;
  return one;
}

std::vector<std::string> shared_cores(const std::vector<std::string>& hosts,
                                      const std::vector<std::vector<int>>& cores) {
  std::map<std::string, std::set<int>> of_host;
  std::map<std::string, std::size_t> ranks;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    of_host[hosts[rank]].insert(cores[rank].begin(), cores[rank].end());
    ++ranks[hosts[rank]];
  }
  std::vector<std::string> shares;
  for (const std::string& host : hosts) {
    const std::size_t own = of_host[host].size();
    shares.push_back(own == 0 || ranks[host] <= own
                         ? ""
                         : fmt::format("{} ranks on {} core{} of {}", ranks[host], own,
                                       own == 1 ? "" : "s", host));
  }
  return shares;
}

Measured gather(const MpiSession& session, const std::vector<Unit>& units,
                const std::vector<Series>& all, int look, const std::vector<NodeReport>& before) {
  const Unit& unit = units[static_cast<std::size_t>(session.rank())];
  const bool confidential = is_confidential(before, unit.uuid);
  Json mine{{"lines", Json::array()}, {"wrong", Json::array()}};
  if (const int sms = unit.multiprocessors;
      sms > 0 && unit.board.find(" MIG ") == std::string::npos) {
    judge::Observation count = observed("setting/sms", "SMs", unit);
    count.look = look;
    count.samples = {static_cast<double>(sms)};
    mine["lines"].push_back(record_of(count));
    mine["wrong"].push_back("");
  }
  mine["cores"] = unit.uuid.empty() ? allowed_cores() : std::vector<int>{};
  for (const Series& series : all) {
    judge::Observation one = observation_of(series, unit, look);
    if (confidential && one.metric.starts_with("host_link/"))
      one.conditions[judge::kConfidential] = "on";
    mine["lines"].push_back(record_of(one));
    mine["wrong"].push_back(series.wrong);
  }
  Measured measured;
  std::vector<std::vector<int>> cores;
  for (const std::string& text : session.gather(json_text(mine))) {
    const Json of_rank = Json::parse(text);
    for (const Json& line : of_rank.at("lines"))
      measured.observations.push_back(judge::observation_of(line));
    for (const Json& wrong : of_rank.at("wrong")) measured.wrong.push_back(wrong);
    cores.push_back(of_rank.at("cores"));
  }
  std::vector<std::string> gpus;
  for (const Unit& each : units) gpus.push_back(each.uuid);
  const auto uses = used_by_others(gpus, before, read_processes(session));
  if (!session.is_root()) return measured;
  const std::vector<std::string> shares = shared_cores(session.hosts(), cores);
  for (judge::Observation& one : measured.observations) {
    const auto rank = static_cast<std::size_t>(one.of.ranks.front());
    if (!uses[rank].empty())
      one.disturbed_by = uses[rank];
    else if (one.disturbed_by.empty())
      one.disturbed_by = shares[rank];
  }
  return measured;
}

std::vector<Verdict> wrong_data(const Measured& measured) {
  std::map<std::string, std::vector<std::size_t>> by_metric;
  for (std::size_t i = 0; i < measured.observations.size(); ++i)
    by_metric[measured.observations[i].metric].push_back(i);
  std::vector<Verdict> verdicts;
  std::set<std::pair<std::string, std::string>> reported;  // a product has several metrics
  for (const auto& [metric, all] : by_metric) {
    const std::string& first = measured.wrong[all.front()];
    const bool alike = all.size() > 1 && !first.empty() &&
                       std::all_of(all.begin(), all.end(),
                                   [&](std::size_t i) { return measured.wrong[i] == first; });
    for (const std::size_t i : all) {
      const judge::Observation& one = measured.observations[i];
      if (measured.wrong[i].empty() || !reported.emplace(one.of.name, measured.wrong[i]).second)
        continue;
      Verdict verdict{one.of.scope, one.of.name, alike ? Outcome::inconclusive : Outcome::fail, ""};
      verdict.cause = fmt::format("rank {} on {}, {}: wrong data: {}", one.of.ranks.front(),
                                  one.of.hosts.front(), metric, measured.wrong[i]);
      verdict.class_ = alike ? Class::software : Class::hardware;
      verdict.action = alike ? "all devices are wrong alike, which is no device's fault: report "
                               "it, with the record"
                       : one.backend == "cpu" ? "run bin/soak on it"
                                              : "run bin/soak on it; if it repeats, RMA";
      verdict.check = "wrong-data";
      verdict.hosts = one.of.hosts;
      verdicts.push_back(verdict);
    }
  }
  return verdicts;
}

std::string table_of(const std::vector<judge::Observation>& observations,
                     const judge::Limits& limits) {
  const std::vector<Column> columns{{"", "metric", 33}, {"", "unit", 13},  {"", "median", 8},
                                    {"lowest", "", 8},  {"on", "rank", 4}, {"highest", "", 8},
                                    {"on", "rank", 4},  {"", "W", 4},      {"limited", "by", 13}};
  std::vector<std::vector<const judge::Observation*>> by_metric;  // in the order of a rank's
  std::map<std::string, std::size_t> place;
  for (const judge::Observation& one : observations) {
    const auto [found, is_new] = place.emplace(one.metric, by_metric.size());
    if (is_new) by_metric.emplace_back();
    by_metric[found->second].push_back(&one);
  }
  std::string text = heading(columns);
  for (const auto& all : by_metric) text += row_of(columns, all, limits);
  return text;
}

Json round_record_of(const MpiSession& session, const Series& series, std::size_t first_sample) {
  const Json mine{
      std::vector<double>(series.samples.begin() + static_cast<std::ptrdiff_t>(first_sample),
                          series.samples.end()),
      series.window.temperature_c, series.wrong.empty()};
  Json fields{{"metric", series.metric.name}, {"unit", series.metric.unit}};
  const char* const keys[] = {"samples", "temperature_c", "correct"};
  for (const std::string& text : session.gather(json_text(mine))) {
    const Json of_rank = Json::parse(text);
    for (std::size_t i = 0; i < std::size(keys); ++i) fields[keys[i]].push_back(of_rank[i]);
  }
  return fields;
}

namespace {

/// What `look` says of the GPU of this UUID; nothing where no node has it.
template <class Look>
std::string of_gpu(const std::vector<NodeReport>& reports, const std::string& uuid, Look&& look) {
  if (uuid.empty()) return "";
  for (const NodeReport& report : reports)
    for (const GpuReading& gpu : report.gpus.gpus)
      if (gpu.uuid == uuid) return look(gpu, report.our_pids);
  return "";
}

/// Memory in use without a process counts as well, above what a driver or a display holds: a
/// container may hide whose it is.
std::string use_before(const GpuReading& gpu, const std::vector<int>& our_pids) {
  constexpr std::uint64_t kHeldByNoJob = std::uint64_t{1} << 30;
  if (foreign_pids(gpu, our_pids).empty() && gpu.memory_used_bytes.value_or(0) < kHeldByNoJob)
    return "";
  GpuContext context;
  context.our_pids = our_pids;
  const Judgement use = judge_foreign_use(gpu, context);
  return use.outcome == Outcome::warn ? use.cause : "";
}

/// In a container the driver may know this job's processes by other numbers: `ranks` of those that
/// are listed are this job's then.
std::string use_now(const GpuReading& gpu, const std::vector<int>& our_pids, std::size_t ranks) {
  const std::vector<int> foreign = foreign_pids(gpu, our_pids);
  const bool knows_ours = gpu.processes && gpu.processes->size() > foreign.size();
  if (foreign.empty() || (!knows_ours && foreign.size() <= ranks)) return "";
  return fmt::format("in use by other processes: pid {}{}", fmt::join(foreign, ", "),
                     knows_ours ? "" : fmt::format(", {} of them this job's", ranks));
}

}  // namespace

bool is_confidential(const std::vector<NodeReport>& reports, const std::string& uuid) {
  return std::ranges::any_of(reports, [&](const NodeReport& report) {
    return report.gpus.confidential_computing == true &&
           std::ranges::find(report.gpus.gpus, uuid, &GpuReading::uuid) != report.gpus.gpus.end();
  });
}

std::vector<NodeReport> read_processes(const MpiSession& session) {
  ReportSource gpus_alone;
  gpus_alone.facts = false;
  return gather_reports(session, gpus_alone);
}

std::vector<std::string> used_by_others(const std::vector<std::string>& gpus,
                                        const std::vector<NodeReport>& before,
                                        const std::vector<NodeReport>& now) {
  std::vector<std::string> uses;
  for (const std::string& uuid : gpus) {
    const auto ranks = static_cast<std::size_t>(std::ranges::count(gpus, uuid));
    const std::string earlier = of_gpu(before, uuid, use_before);
    uses.push_back(!earlier.empty() ? earlier
                                    : of_gpu(now, uuid, [&](const auto& gpu, const auto& ours) {
                                        return use_now(gpu, ours, ranks);
                                      }));
  }
  return uses;
}

}  // namespace shakedown::node
