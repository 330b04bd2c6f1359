#include "launch/node/soak/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/statistics.hpp"
#include "launch/node/health/rules/kernel_rules.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kOfHost =
    "run again; if it repeats on this host alone, replace its processor or memory";

std::string hex_of(std::uint64_t bits) { return fmt::format("0x{:x}", bits); }

std::string circumstances(const Incident& incident) {
  std::string text;
  if (std::isfinite(incident.temperature_c))
    text += fmt::format(", {:.0f} C", incident.temperature_c);
  if (std::isfinite(incident.sm_clock_mhz))
    text += fmt::format(", {:.0f} MHz", incident.sm_clock_mhz);
  if (std::isfinite(incident.power_w)) text += fmt::format(", {:.0f} W", incident.power_w);
  return text;
}

Verdict verdict_of(const Incident& incident, std::size_t others, const RankIdentity& identity) {
  const Mismatch& mismatch = incident.mismatch;
  Verdict verdict = on_rank(incident.rank, identity, "wrong-data");
  std::string who = place_of(incident.rank, identity);
  if (mismatch.of_all) {
    verdict.scope = Scope::job;
    verdict.name = "soak";
    verdict.hosts.clear();
    who = identity.model.empty() ? "all devices" : "all devices of " + identity.model;
  }
  verdict.outcome = mismatch.outcome;
  verdict.class_ = mismatch.class_;
  verdict.cause = fmt::format("{}: {} {}", who, mismatch.load, mismatch.where);
  if (mismatch.expected && mismatch.found)
    verdict.cause +=
        fmt::format(": expected {}, found {}", hex_of(*mismatch.expected), hex_of(*mismatch.found));
  verdict.cause += fmt::format(": {}{}", mismatch.cause, circumstances(incident));
  if (others > 0) verdict.cause += fmt::format("; {} more such mismatches", others);
  if (!incident.capsule.empty()) verdict.cause += fmt::format("; capsule {}", incident.capsule);
  const bool of_host = identity.uuid.empty() && mismatch.class_ == Class::hardware;
  verdict.action = of_host ? kOfHost : mismatch.action;
  return verdict;
}

/// One verdict per rank and load; on all of a product's types together, and on what all ranks have.
void judge_mismatches(const std::vector<Incident>& incidents,
                      const std::vector<RankIdentity>& ranks, std::vector<Verdict>& verdicts) {
  std::map<std::tuple<int, std::string, Outcome, bool>, std::vector<const Incident*>> groups;
  for (const Incident& incident : incidents) {
    const std::string& load = incident.mismatch.load;
    groups[{incident.rank, load.substr(0, load.find(' ')), incident.mismatch.outcome,
            incident.mismatch.of_all}]
        .push_back(&incident);
  }
  for (const auto& [key, group] : groups)
    verdicts.push_back(verdict_of(*group.front(), group.size() - 1,
                                  ranks[static_cast<std::size_t>(std::get<0>(key))]));
}

}  // namespace

Json record_of(const Incident& incident, const RankIdentity& identity) {
  const Mismatch& mismatch = incident.mismatch;
  Json fields{{"window", incident.window}, {"rank", incident.rank},
              {"host", identity.host},     {"gpu", identity.uuid},
              {"load", mismatch.load},     {"operation", mismatch.operation},
              {"where", mismatch.where},   {"cause", mismatch.cause}};
  if (mismatch.outcome != Outcome::fail) fields["verdict"] = name_of(mismatch.outcome);
  if (!identity.serial.empty()) fields["serial"] = identity.serial;
  if (mismatch.index) fields["index"] = *mismatch.index;
  if (mismatch.expected) fields["expected"] = hex_of(*mismatch.expected);
  if (mismatch.found) fields["found"] = hex_of(*mismatch.found);
  if (mismatch.sm) fields["sm"] = *mismatch.sm;
  if (mismatch.reproduced) fields["reproduced"] = *mismatch.reproduced;
  if (mismatch.repeats) fields["repeats"] = *mismatch.repeats;
  if (mismatch.of_all) fields["of_all"] = true;
  if (!incident.capsule.empty()) fields["capsule"] = incident.capsule;
  if (!incident.no_capsule.empty()) fields["no_capsule"] = incident.no_capsule;
  fields["temperature_c"] = incident.temperature_c;
  fields["sm_clock_mhz"] = incident.sm_clock_mhz;
  fields["power_w"] = incident.power_w;
  return fields;
}

std::vector<Verdict> judge_soak(const std::vector<Window>& windows,
                                const std::vector<Incident>& incidents,
                                const std::vector<RankIdentity>& ranks) {
  std::vector<Verdict> verdicts;
  judge_mismatches(incidents, ranks, verdicts);
  judge_health(windows, ranks, verdicts);
  return verdicts;
}

Work work_of(const std::vector<Window>& windows) {
  Work work;
  for (const Window& window : windows) {
    work.products += window.checked(LoadKind::products);
    work.probes += window.checked(LoadKind::probes);
    work.memory_bytes += window.bytes(LoadKind::memory);
    work.copied_bytes += window.bytes(LoadKind::copies);
    work.link_bytes += window.bytes(LoadKind::collectives);
    for (const RankWindow& rank : window.ranks) {
      work.gpu_hours += rank.seconds / 3600;
      work.self_compared += rank.self_compared;
    }
  }
  return work;
}

double energy_of(const std::vector<Window>& windows) {
  double energy = 0;
  for (const Window& window : windows)
    for (const RankWindow& rank : window.ranks)
      energy += std::isfinite(rank.energy_j) ? rank.energy_j : rank.power_w * rank.seconds;
  return energy;
}

CheckedRates checked_rates(const std::vector<Window>& windows) {
  std::map<ProductType, std::vector<double>> ratios;
  for (const Window& window : windows)
    for (const RankWindow& rank : window.ranks)
      if (window.steady_products && std::isfinite(rank.checked_over_unchecked))
        ratios[*window.steady_products].push_back(rank.checked_over_unchecked);
  CheckedRates rates;
  std::vector<double> all;
  for (const auto& [type, of_type] : ratios)
    all.push_back(rates.by_type[type] = median_of(of_type));
  if (!all.empty()) rates.all = median_of(all);
  return rates;
}

std::string text_of(const CheckedRates& rates) {
  if (rates.by_type.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& [type, ratio] : rates.by_type)
    parts.push_back(fmt::format("{} {:.1f}", name_of(type), 100 * ratio));
  return fmt::format("checked products run at {:.1f} % of the rate of unchecked ones ({})",
                     100 * rates.all, fmt::join(parts, ", "));
}

namespace {

/// "; rank 1 covered its memory by 5 of 6 patterns", of those without a whole pass.
std::string uncovered(const std::vector<MemoryCoverage>& memory) {
  std::string text;
  for (std::size_t r = 0; r < memory.size(); ++r)
    if (!memory[r].is_whole())
      text += fmt::format("; rank {} covered its memory by {} of {} patterns", r,
                          memory[r].patterns_done, memory[r].patterns);
  return text;
}

/// The time in which each rank's memory is covered, as far as the slowest has come. Empty where all
/// are, or one has not begun.
std::string longer_soak(const JobFacts& facts) {
  constexpr double kMargin = 1.1;
  double of_pass = 1;
  for (const MemoryCoverage& memory : facts.memory)
    if (!memory.is_whole()) of_pass = std::min(of_pass, memory.of_pass);
  if (uncovered(facts.memory).empty() || of_pass == 0) return "";
  const double minutes = kMargin * facts.minutes / of_pass;
  const std::string needed = minutes < 1 ? fmt::format("{:.2f}", std::ceil(100 * minutes) / 100)
                                         : fmt::format("{:.0f}", std::ceil(minutes));
  return fmt::format("run again with --minutes {} (launch/acceptance --full --soak-minutes {})",
                     needed, needed);
}

/// What makes a soak without findings inconclusive; "; rank 1 checked no memory".
std::string unchecked(const std::vector<Window>& windows, const JobFacts& facts) {
  std::string text;
  for (const LoadKind kind : facts.requested) {
    for (std::size_t r = 0; !windows.empty() && r < windows.front().ranks.size(); ++r) {
      const auto at = static_cast<std::size_t>(kind);
      double checked = 0;
      for (const Window& window : windows) checked += window.ranks[r].checked[at];
      if (checked == 0) text += fmt::format("; rank {} checked no {}", r, name_of(kind));
    }
  }
  return text + uncovered(facts.memory);
}

}  // namespace

Verdict judge_job(const std::vector<Window>& windows, const std::vector<Verdict>& findings,
                  const JobFacts& facts) {
  Verdict verdict;
  verdict.name = verdict.check = "soak";
  double wrong = 0;
  for (const Window& window : windows) wrong += window.wrong();
  verdict.cause = statement_of(work_of(windows), wrong, facts.device);
  for (const Verdict& finding : findings)
    if (finding.outcome == Outcome::inconclusive || finding.outcome == Outcome::fail)
      verdict.outcome = std::max(verdict.outcome, finding.outcome);
  if (wrong > 0 && verdict.outcome == Outcome::pass) {  // that no finding explains
    verdict.outcome = Outcome::fail;
    verdict.class_ = Class::hardware;
    verdict.action = "run again for longer";
  }
  const std::string missing = unchecked(windows, facts);
  const bool stopped = !facts.stopped_by.empty();
  if ((windows.empty() || stopped || !missing.empty()) && verdict.outcome == Outcome::pass) {
    verdict.outcome = Outcome::inconclusive;
    if (!stopped) verdict.action = longer_soak(facts);
  }
  if (stopped)
    verdict.cause = fmt::format("stopped by {} after {:.0f} of {:.0f} s; {}", facts.stopped_by,
                                60 * facts.minutes, 60 * facts.minutes_requested, verdict.cause);
  verdict.cause += missing;
  for (const std::string& remark : facts.remarks)
    if (!remark.empty()) verdict.cause += "; " + remark;
  return verdict;
}

Json summary_of(const std::vector<Window>& windows, const std::vector<MemoryCoverage>& memory) {
  Json fields{{"energy_j", energy_of(windows)},
              {"products", work_of(windows).products},
              {"products_self_compared", work_of(windows).self_compared}};
  for (const MemoryCoverage& rank : memory) {
    if (rank.patterns == 0) continue;
    fields["memory_share"].push_back(rank.share);
    fields["memory_passes"].push_back(rank.passes);
  }
  const CheckedRates rates = checked_rates(windows);
  if (!rates.by_type.empty()) fields["checked_over_unchecked"] = rates.all;
  for (const auto& [type, ratio] : rates.by_type)
    fields[fmt::format("checked_over_unchecked.{}", name_of(type))] = ratio;
  return fields;
}

namespace {

/// "2.1e6", "130": two digits where there are more than five.
std::string readable_count(double count) {
  if (count < 1e5) return fmt::format("{:.0f}", count);
  const std::string text = fmt::format("{:.1e}", count);  // "2.1e+06"
  const std::size_t e = text.find('e');
  return text.substr(0, e + 1) + std::to_string(std::stoi(text.substr(e + 1)));
}

}  // namespace

double rate_bound(double gpu_hours) {
  return gpu_hours > 0 ? 3 / gpu_hours : std::numeric_limits<double>::infinity();
}

std::string readable_decimal_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 6) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string statement_of(const Work& work, double wrong, const std::string& device) {
  std::vector<std::string> parts;
  if (work.products > 0) {
    parts.push_back(readable_count(work.products) + " products");
    if (work.self_compared > 0)
      parts.back() += fmt::format(", of which {} were compared only with themselves",
                                  readable_count(work.self_compared));
  }
  if (work.probes > 0) parts.push_back(readable_count(work.probes) + " probes of processors");
  if (work.memory_bytes > 0)
    parts.push_back(readable_decimal_bytes(work.memory_bytes) + " of memory");
  if (work.copied_bytes > 0) parts.push_back(readable_decimal_bytes(work.copied_bytes) + " copied");
  if (work.link_bytes > 0) parts.push_back(readable_decimal_bytes(work.link_bytes) + " over links");
  if (parts.empty()) return "nothing was checked";
  const std::string done =
      fmt::format("{} wrong in {}", readable_count(wrong), fmt::join(parts, ", "));
  if (wrong > 0) return done;
  return fmt::format("{}: rate below {:.3g} per {}-hour at 95 %", done, rate_bound(work.gpu_hours),
                     device);
}

namespace {

/// Share of all windows' time; kUnknown where no window knows it.
double share_of_time(const std::vector<Window>& windows, std::size_t rank,
                     double RankWindow::*share) {
  double with = 0;
  double known = 0;
  for (const Window& window : windows) {
    const RankWindow& mine = window.ranks[rank];
    if (!std::isfinite(mine.*share)) continue;
    with += mine.*share * mine.seconds;
    known += mine.seconds;
  }
  return known > 0 ? with / known : kUnknown;
}

/// The windows of one rank, and verdicts on it.
struct OfRank {
  const std::vector<Window>& windows;
  const std::vector<RankIdentity>& ranks;
  std::size_t rank;
  std::vector<Verdict>& verdicts;

  const RankIdentity& identity() const { return ranks[rank]; }
  Verdict& add(const char* check, Outcome outcome, std::optional<Class> class_,
               const std::string& cause, const std::string& action) const {
    const int number = static_cast<int>(rank);
    Verdict verdict = on_rank(number, identity(), check);
    verdict.outcome = outcome;
    verdict.class_ = class_;
    verdict.cause = fmt::format("{}: {}", place_of(number, identity()), cause);
    verdict.action = action;
    verdicts.push_back(verdict);
    return verdicts.back();
  }
};

void judge_throttling(const OfRank& of) {
  constexpr double kThermalRemark = 0.01;
  constexpr double kThermalFail = 0.05;
  const double slowdown = share_of_time(of.windows, of.rank, &RankWindow::hardware_slowdown_share);
  const double thermal = share_of_time(of.windows, of.rank, &RankWindow::thermal_share);
  const auto add = [&](bool fails, const std::string& cause, const char* action) {
    of.add("throttling", fails ? Outcome::fail : Outcome::warn, Class::environment, cause, action);
  };
  if (slowdown > 0)
    add(true,
        fmt::format("hardware slowdown or power brake in {:.2g} % of the time", 100 * slowdown),
        "inspect power supply and cooling");
  if (thermal > kThermalRemark)
    add(thermal > kThermalFail,
        fmt::format("thermal slowdown in {:.2g} % of the time{}", 100 * thermal,
                    thermal > kThermalFail ? "" : ": it fails above 5 %"),
        "inspect cooling");
}

double sum_of_errors(const OfRank& of, double HealthDelta::*count) {
  double sum = 0;
  for (const Window& window : of.windows) {
    const double errors = window.ranks[of.rank].errors.*count;
    if (std::isfinite(errors)) sum += errors;
  }
  return sum;
}

/// What must be known of a GPU in most windows, and in the last one.
struct Watched {
  const char* what;
  double (*value)(const RankWindow&);
  bool of_ecc = false;
};
constexpr Watched kWatched[] = {
    {"ECC errors", [](const RankWindow& w) { return w.errors.ecc_uncorrected; }, true},
    {"hardware slowdown", [](const RankWindow& w) { return w.hardware_slowdown_share; }},
    {"thermal slowdown", [](const RankWindow& w) { return w.thermal_share; }},
};

void judge_unknown(const OfRank& of) {
  const RankIdentity& identity = of.identity();
  if (of.windows.empty() || identity.uuid.empty() || !identity.stalled.empty()) return;
  std::vector<std::string> unknown;
  for (const Watched& watched : kWatched) {
    if (watched.of_ecc && identity.lacks_ecc) continue;
    const auto is_known = [&](const Window& window) {
      return std::isfinite(watched.value(window.ranks[of.rank]));
    };
    const auto known = std::ranges::count_if(of.windows, is_known);
    const bool to_the_end = is_known(of.windows.back());
    if (2 * known < std::ssize(of.windows) || !to_the_end)
      unknown.push_back(fmt::format("{} in {} of {}{}", watched.what, known, of.windows.size(),
                                    known > 0 && !to_the_end ? ", not the last" : ""));
  }
  if (!unknown.empty())
    of.add("health-unknown", Outcome::inconclusive, {},
           fmt::format("windows in which its health could be read: {}", fmt::join(unknown, "; ")),
           "run bin/node_check: it says why NVML cannot be read");
}

/// What the driver counted, and what it did not answer. Corrected errors are a warning.
void judge_errors(const OfRank& of) {
  const auto add = [&](bool holds, Outcome outcome, const std::string& cause,
                       const char* action = "") {
    if (holds) of.add("driver-errors", outcome, Class::hardware, cause, action);
  };
  const RankIdentity& identity = of.identity();
  const double uncorrected = sum_of_errors(of, &HealthDelta::ecc_uncorrected);
  const double corrected = sum_of_errors(of, &HealthDelta::ecc_corrected);
  const double links = sum_of_errors(of, &HealthDelta::nvlink_errors);
  add(uncorrected > 0, Outcome::fail, fmt::format("{:.0f} uncorrected ECC errors", uncorrected),
      "reset the GPU; replace it if they come back");
  add(identity.lacks_ecc, Outcome::warn,
      "no ECC, or it is off: errors of its memory are found by the memory load alone");
  add(identity.remap_pending, Outcome::fail, "memory waits to be remapped", "reset the GPU");
  add(corrected > 0, Outcome::warn, fmt::format("{:.0f} corrected ECC errors", corrected));
  add(links > 0, Outcome::warn, fmt::format("{:.0f} NVLink CRC, replay or recovery errors", links),
      "inspect the GPU's NVLinks: bin/link_matrix");
  add(!identity.stalled.empty(), Outcome::fail,
      fmt::format("the driver does not answer: {}", identity.stalled),
      "drain the node, reset the GPU or reboot");
}

/// The XIDs of the windows. Warnings are remarks.
void judge_xids(const OfRank& of) {
  std::vector<KernelEvent> events;
  for (const Window& window : of.windows)
    if (of.rank < window.kernel_events.size() && window.kernel_events[of.rank])
      events.insert(events.end(), window.kernel_events[of.rank]->begin(),
                    window.kernel_events[of.rank]->end());
  const std::string& host = of.identity().host;
  const bool is_first = std::ranges::find(of.ranks, host, &RankIdentity::host) ==
                        of.ranks.begin() + static_cast<std::ptrdiff_t>(of.rank);
  for (const Judgement& judgement : judge_kernel_events(events)) {
    const bool of_switch = judgement.class_ == Class::infrastructure;  // seen by all its ranks
    if (judgement.outcome == Outcome::pass || (of_switch && !is_first)) continue;
    Verdict& verdict = of.add(
        "xid", judgement.outcome == Outcome::unknown ? Outcome::inconclusive : *judgement.outcome,
        judgement.class_, "during the soak: " + judgement.cause, judgement.action);
    if (!of_switch) continue;
    verdict.scope = Scope::node;
    verdict.name = host;
  }
}

}  // namespace

void judge_health(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts) {
  for (const auto judge : {judge_unknown, judge_throttling, judge_errors, judge_xids})
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) judge({windows, ranks, rank, verdicts});
}

std::vector<std::string> unknown_health(const std::vector<Window>& windows,
                                        const std::vector<RankIdentity>& ranks) {
  std::vector<int> without_xids, without_links;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (windows.empty() || ranks[r].uuid.empty()) continue;
    if (std::ranges::any_of(windows, [&](const Window& window) {
          return r < window.kernel_events.size() && !window.kernel_events[r];
        }))
      without_xids.push_back(static_cast<int>(r));
    if (std::ranges::none_of(windows, [&](const Window& window) {
          return std::isfinite(window.ranks[r].errors.nvlink_errors);
        }))
      without_links.push_back(static_cast<int>(r));
  }
  std::vector<std::string> remarks;
  const auto add = [&](const char* what, const std::vector<int>& of, const char* why) {
    if (of.empty()) return;
    remarks.push_back(fmt::format("{} not known on rank{} {}: {}", what, of.size() == 1 ? "" : "s",
                                  fmt::join(of, ", "), why));
  };
  add("XIDs", without_xids, "/dev/kmsg cannot be read, or not in time");
  add("NVLink errors", without_links, "the driver does not report them");
  return remarks;
}

namespace {

/// At most kMost samples, evenly spaced: a soak may last for days.
std::vector<double> thinned(const std::vector<double>& samples) {
  constexpr std::size_t kMost = 60;
  if (samples.size() <= kMost) return samples;
  std::vector<double> kept;
  for (std::size_t i = 0; i < kMost; ++i) kept.push_back(samples[i * samples.size() / kMost]);
  return kept;
}

/// In the windows of the type's steady products: the median power, the highest temperature, every
/// throttle reason.
GpuWindow seen_of(const std::vector<Window>& windows, std::size_t rank, ProductType type) {
  std::vector<double> power_w;
  GpuWindow seen;
  for (const Window& window : windows) {
    if (window.steady_products != type) continue;
    const RankWindow& of_rank = window.ranks[rank];
    if (std::isfinite(of_rank.power_w)) power_w.push_back(of_rank.power_w);
    seen.temperature_c = std::fmax(seen.temperature_c, of_rank.temperature_c);  // or the known one
    if (of_rank.throttle_known)
      seen.throttle_reasons = seen.throttle_reasons.value_or(0) | of_rank.throttle_reasons;
  }
  if (!power_w.empty()) seen.power_w = median_of(power_w);
  return seen;
}

}  // namespace

std::vector<Series> series_of(const std::vector<SoakedProduct>& products,
                              const std::vector<Window>& windows,
                              const std::vector<Incident>& incidents, int rank, BackendKind kind) {
  std::vector<Series> all;
  for (const auto& [spec, algorithm, rates] : products) {
    const std::string load = fmt::format("product {}", name_of(spec.type));
    Series common;
    common.conditions = {{"shape", fmt::format("{}x{}x{}", spec.m, spec.n, spec.k)},
                         {"algorithm", without_library(algorithm)},
                         {"data", "random"},
                         {"manner", "checked"}};
    common.window = seen_of(windows, static_cast<std::size_t>(rank), spec.type);
    if (!rates.clock_mhz.empty()) common.clock_mhz = median_of(rates.clock_mhz);
    for (const Incident& incident : incidents)
      if ((incident.rank == rank || incident.mismatch.of_all) && incident.mismatch.load == load)
        common.wrong = incident.mismatch.cause;
    for (const Metric& metric : product_metrics(spec.type, kind)) {
      Series one = common;
      one.metric = metric;
      one.samples = thinned(metric.unit == "MHz"       ? rates.clock_mhz
                            : metric.unit == "TFLOP/s" ? rates.tflops
                                                       : rates.flop_per_cycle_sm);
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace shakedown::node
