#include "launch/node/soak/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "common/statistics.hpp"
#include "launch/node/soak/health_findings.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kOfHost =
    "run again; if it repeats on this host alone, replace its processor or memory";

std::string hex(std::uint64_t bits) { return fmt::format("0x{:x}", bits); }

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
        fmt::format(": expected {}, found {}", hex(*mismatch.expected), hex(*mismatch.found));
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
  if (mismatch.expected) fields["expected"] = hex(*mismatch.expected);
  if (mismatch.found) fields["found"] = hex(*mismatch.found);
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

}  // namespace shakedown::node
