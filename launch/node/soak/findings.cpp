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
#include "launch/node/health/rules/rules.hpp"

namespace shakedown::node {
namespace {

/// By CopyWay.
constexpr const char* kCopied[] = {"copied_to_device_bytes", "copied_within_device_bytes",
                                   "copied_to_host_bytes"};
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
  verdict.outcome = mismatch.outcome.value_or(Outcome::unknown);
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
  std::map<std::tuple<int, std::string, MaybeOutcome, bool>, std::vector<const Incident*>> groups;
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

/// Of all GPUs, or ranks.
double hours_of(const std::vector<Window>& windows) {
  double seconds = 0;
  for (const Window& window : windows)
    for (const RankWindow& rank : window.ranks) seconds += rank.seconds;
  return seconds / 3600;
}

}  // namespace

Json record_of(const Incident& incident, const RankIdentity& identity) {
  const Mismatch& mismatch = incident.mismatch;
  Json fields{{"window", incident.window}, {"rank", incident.rank},
              {"host", identity.host},     {"gpu", identity.uuid},
              {"load", mismatch.load},     {"operation", mismatch.operation},
              {"where", mismatch.where},   {"cause", mismatch.cause}};
  if (mismatch.outcome == Outcome::inconclusive) fields["verdict"] = name_of(*mismatch.outcome);
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

double energy_of(const std::vector<Window>& windows) {
  double energy = 0;
  for (const Window& window : windows)
    for (const RankWindow& rank : window.ranks)
      energy += std::isfinite(rank.energy_j) ? rank.energy_j : rank.power_w * rank.seconds;
  return energy;
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

/// What makes a soak without findings inconclusive; "; ranks 0, 1 checked no memory".
std::string unchecked(const std::vector<Window>& windows, const JobFacts& facts) {
  const std::size_t ranks = windows.empty() ? 0 : windows.front().ranks.size();
  std::string text;
  for (const LoadKind kind : facts.requested) {
    const auto at = static_cast<std::size_t>(kind);
    std::vector<std::size_t> idle;
    for (std::size_t r = 0; r < ranks; ++r)
      if (std::ranges::all_of(windows, [&](const Window& window) {
            return window.ranks[r].counts[at].checked == 0;
          }))
        idle.push_back(r);
    if (ranks > 1 && idle.size() == ranks)
      text += fmt::format("; no rank checked {}", name_of(kind));
    else if (!idle.empty())
      text += fmt::format("; rank{} {} checked no {}", idle.size() == 1 ? "" : "s",
                          fmt::join(idle, ", "), name_of(kind));
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
  const double hours = hours_of(windows);
  verdict.cause = fmt::format("{:.0f} wrong in {:.3g} {}-hours", wrong, hours, facts.device);
  if (wrong == 0 && hours > 0)
    verdict.cause += fmt::format(": rate below {:.3g} per {}-hour at 95 %{}{}", 3 / hours,
                                 facts.device, facts.power.empty() ? "" : "; ", facts.power);
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
    verdict.cause = fmt::format(
        "{} after {:.0f} of {:.0f} s; {}",
        // launch/mpi and the job scripts send USR2 for whatever stops them
        facts.stopped_by == "SIGUSR2" ? "interrupted" : "stopped by " + facts.stopped_by,
        60 * facts.minutes, 60 * facts.minutes_requested, verdict.cause);
  verdict.cause += missing;
  for (const std::string& remark : facts.remarks)
    if (!remark.empty()) verdict.cause += "; " + remark;
  return verdict;
}

Json summary_of(const std::vector<Window>& windows, const std::vector<Tested>& tested) {
  std::array<LoadCount, kLoadKinds> counts;
  double wrong = 0;
  std::map<ProductType, std::vector<double>> ratios;  // of windows and ranks
  for (const Window& window : windows) {
    wrong += window.wrong();
    for (const LoadKind kind : kLoads) counts[static_cast<std::size_t>(kind)] += window.count(kind);
    for (const RankWindow& rank : window.ranks)
      if (window.steady_products && std::isfinite(rank.checked_over_unchecked))
        ratios[*window.steady_products].push_back(rank.checked_over_unchecked);
  }
  const auto of = [&](LoadKind kind) { return counts[static_cast<std::size_t>(kind)]; };
  Json fields{{"energy_j", energy_of(windows)},
              {"gpu_hours", hours_of(windows)},
              {"wrong", wrong},
              {"products", of(LoadKind::products).checked},
              {"products_self_compared", of(LoadKind::products).self_compared},
              {"probes", of(LoadKind::probes).checked},
              {"memory_bytes", of(LoadKind::memory).bytes},
              {"copied_bytes", of(LoadKind::copies).bytes},
              {"link_bytes", of(LoadKind::collectives).bytes}};
  for (std::size_t rank = 0; rank < tested.size(); ++rank)
    for (const auto& [type, count] : product_counts(windows, rank)) {
      fields[fmt::format("products.{}", name_of(type))].push_back(count.products);
      fields[fmt::format("product_turns.{}", name_of(type))].push_back(count.turns);
      fields["product_elements"] = count.elements;
    }
  for (const Tested& rank : tested) {
    if (rank.memory.patterns > 0) {
      fields["memory_share"].push_back(rank.memory.share);
      fields["memory_tested_bytes"].push_back(rank.memory.bytes);
      fields["memory_passes"].push_back(rank.memory.passes);
      fields["memory_patterns_done"].push_back(rank.memory.patterns_done);
    }
    if (rank.processors.processors > 0) {
      fields["processors"].push_back(rank.processors.processors);
      fields["processors_reached"].push_back(rank.processors.reached);
      fields["slowest_processor"].push_back(rank.processors.slowest);
      fields["slowest_processor_ratio"].push_back(rank.processors.slowest_ratio);
    }
    for (std::size_t way = 0; of(LoadKind::copies).bytes > 0 && way < rank.copied.size(); ++way)
      fields[kCopied[way]].push_back(rank.copied[way]);
  }
  std::vector<double> of_types;
  for (const auto& [type, of_type] : ratios) of_types.push_back(median_of(of_type));
  if (!of_types.empty()) fields["checked_over_unchecked"] = median_of(of_types);
  for (const auto& [type, of_type] : ratios)
    fields[fmt::format("checked_over_unchecked.{}", name_of(type))] = median_of(of_type);
  return fields;
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
  Verdict& add(const char* check, const Judgement& judgement) const {
    const int number = static_cast<int>(rank);
    Verdict& verdict = verdicts.emplace_back(on_rank(number, identity(), check));
    verdict.outcome =
        judgement.outcome == Outcome::unknown ? Outcome::inconclusive : *judgement.outcome;
    verdict.class_ = judgement.class_;
    verdict.cause = fmt::format("{}: {}", place_of(number, identity()), judgement.cause);
    verdict.action = judgement.action;
    return verdict;
  }
};

void judge_throttling(const OfRank& of) {
  constexpr double kThermalRemark = 0.01;
  constexpr double kThermalFail = 0.05;
  const double slowdown = share_of_time(of.windows, of.rank, &RankWindow::hardware_slowdown_share);
  const double thermal = share_of_time(of.windows, of.rank, &RankWindow::thermal_share);
  const auto add = [&](bool fails, const std::string& cause, const char* action) {
    of.add("throttling", (fails ? failure : warning)(Class::environment, cause, action));
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
    of.add("health-unknown", not_known(fmt::format("windows in which its health could be read: {}",
                                                   fmt::join(unknown, "; ")),
                                       "run bin/node_check: it says why NVML cannot be read"));
}

/// What the driver counted, and what it did not answer. Corrected errors are a warning.
void judge_errors(const OfRank& of) {
  const auto add = [&](bool holds, auto judge, const std::string& cause, const char* action = "") {
    if (holds) of.add("driver-errors", judge(Class::hardware, cause, action));
  };
  const RankIdentity& identity = of.identity();
  const double uncorrected = sum_of_errors(of, &HealthDelta::ecc_uncorrected);
  const double corrected = sum_of_errors(of, &HealthDelta::ecc_corrected);
  const double links = sum_of_errors(of, &HealthDelta::nvlink_errors);
  add(uncorrected > 0, failure, fmt::format("{:.0f} uncorrected ECC errors", uncorrected),
      "reset the GPU; replace it if they come back");
  add(identity.lacks_ecc, warning,
      "no ECC, or it is off: errors of its memory are found by the memory load alone");
  add(identity.remap_pending, failure, "memory waits to be remapped", "reset the GPU");
  add(corrected > 0, warning, fmt::format("{:.0f} corrected ECC errors", corrected));
  add(links > 0, warning, fmt::format("{:.0f} NVLink CRC, replay or recovery errors", links),
      "inspect the GPU's NVLinks: bin/link_matrix");
  add(!identity.stalled.empty(), failure,
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
    Judgement during = judgement;
    during.cause = "during the soak: " + judgement.cause;
    Verdict& verdict = of.add("xid", during);
    if (!of_switch) continue;
    verdict.scope = Scope::node;
    verdict.name = host;
  }
}

}  // namespace

std::vector<Verdict> judge_soak(const std::vector<Window>& windows,
                                const std::vector<Incident>& incidents,
                                const std::vector<RankIdentity>& ranks) {
  std::vector<Verdict> verdicts;
  judge_mismatches(incidents, ranks, verdicts);
  for (const auto judge : {judge_unknown, judge_throttling, judge_errors, judge_xids})
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) judge({windows, ranks, rank, verdicts});
  return verdicts;
}

std::vector<std::string> unknown_health(const std::vector<Window>& windows,
                                        const std::vector<RankIdentity>& ranks) {
  std::vector<int> without_xids, without_links, instances;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (windows.empty() || ranks[r].uuid.empty()) continue;
    if (std::ranges::any_of(windows, [&](const Window& window) {
          return r < window.kernel_events.size() && !window.kernel_events[r];
        }))
      without_xids.push_back(static_cast<int>(r));
    if (ranks[r].uuid.starts_with("MIG-")) instances.push_back(static_cast<int>(r));
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
  add("health of the MIG instance alone", instances, "the driver reports its GPU's");
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
    if (of_rank.throttle_reasons)
      seen.throttle_reasons = seen.throttle_reasons.value_or(0) | *of_rank.throttle_reasons;
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
    for (Series& one : node::series_of(spec, algorithm, kind, rates)) {
      one.conditions["manner"] = "sustained";
      one.window = seen_of(windows, static_cast<std::size_t>(rank), spec.type);
      one.samples = thinned(one.samples);
      for (const Incident& incident : incidents)
        if ((incident.rank == rank || incident.mismatch.of_all) && incident.mismatch.load == load)
          one.wrong = incident.mismatch.cause;
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace shakedown::node
