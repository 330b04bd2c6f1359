#include "launch/node/soak/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "common/statistics.hpp"
#include "launch/node/health/rules/kernel_rules.hpp"

namespace shakedown::node {
namespace {

std::string hex(std::uint64_t bits) { return fmt::format("0x{:x}", bits); }

Verdict on_rank(int rank, const RankIdentity& identity) {
  Verdict verdict;
  verdict.scope = identity.uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = identity.uuid.empty() ? std::to_string(rank) : identity.uuid;
  return verdict;
}

std::string place_of(int rank, const RankIdentity& identity) {
  return fmt::format("rank {} on {}{}", rank, identity.host,
                     identity.serial.empty() ? "" : ", serial " + identity.serial);
}

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
  Verdict verdict = on_rank(incident.rank, identity);
  std::string who = place_of(incident.rank, identity);
  if (mismatch.of_all) {
    verdict = {Scope::job, "soak", Outcome::pass, ""};
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
  verdict.action = mismatch.action;
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

double rate_of(const RankWindow& rank) {
  return rank.product_seconds > 0 ? rank.flop / rank.product_seconds : 0;
}

/// Medians over the windows of steady products.
Circumstances circumstances_of(const std::vector<Window>& windows, std::size_t rank,
                               const std::vector<std::size_t>& peers) {
  const auto median = [&](const std::vector<std::size_t>& of, double RankWindow::*field) {
    std::vector<double> values;
    for (const Window& window : windows)
      for (const std::size_t r : of)
        if (window.steady_products && std::isfinite(window.ranks[r].*field))
          values.push_back(window.ranks[r].*field);
    return values.empty() ? kUnknown : median_of(values);
  };
  Circumstances seen{median({rank}, &RankWindow::sm_clock_mhz),
                     median(peers, &RankWindow::sm_clock_mhz),
                     median({rank}, &RankWindow::temperature_c),
                     median(peers, &RankWindow::temperature_c), std::nullopt};
  for (const Window& window : windows)
    if (window.steady_products && window.ranks[rank].throttle_known)
      seen.throttle_reasons =
          seen.throttle_reasons.value_or(0) | window.ranks[rank].throttle_reasons;
  return seen;
}

void judge_rates(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                 const Limits& limits, const PeerRule& rule, std::vector<Verdict>& verdicts) {
  std::map<std::string, std::vector<std::size_t>> models;
  for (std::size_t r = 0; r < ranks.size(); ++r) models[ranks[r].model].push_back(r);
  for (const auto& [model, members] : models) {
    Rates rates(members.size());
    for (const Window& window : windows)
      for (std::size_t i = 0; window.steady_products && i < members.size(); ++i)
        rates[i].push_back(rate_of(window.ranks[members[i]]));
    if (!comparable(rates, rule)) continue;
    for (const Slow& slow : slow_among_peers(rates, limits, rule)) {
      const std::size_t rank = members[slow.gpu];
      const Explanation why = explain(slow, limits, circumstances_of(windows, rank, members));
      Verdict verdict = on_rank(static_cast<int>(rank), ranks[rank]);
      verdict.outcome = slow.fails ? Outcome::fail : Outcome::pass;
      verdict.class_ = why.class_;
      verdict.cause =
          fmt::format("{}: slow, {:.2f} of the median rate of products, in {} of {} windows: {}",
                      place_of(static_cast<int>(rank), ranks[rank]), slow.ratio, slow.slow_rounds,
                      slow.rounds, why.cause);
      verdict.action = why.action;
      verdicts.push_back(verdict);
    }
  }
}

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

void judge_throttling(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                      std::vector<Verdict>& verdicts) {
  constexpr double kThermalRemark = 0.01;
  constexpr double kThermalFail = 0.05;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double slowdown = share_of_time(windows, r, &RankWindow::hardware_slowdown_share);
    const double thermal = share_of_time(windows, r, &RankWindow::thermal_share);
    Verdict verdict = on_rank(static_cast<int>(r), ranks[r]);
    verdict.class_ = Class::environment;
    const std::string place = place_of(static_cast<int>(r), ranks[r]);
    if (slowdown > 0) {
      verdict.outcome = Outcome::fail;
      verdict.cause = fmt::format("{}: hardware slowdown or power brake in {:.2g} % of the time",
                                  place, 100 * slowdown);
      verdict.action = "inspect power supply and cooling";
      verdicts.push_back(verdict);
    }
    if (thermal > kThermalRemark) {
      verdict.outcome = thermal > kThermalFail ? Outcome::fail : Outcome::pass;
      verdict.cause =
          fmt::format("{}: thermal slowdown in {:.2g} % of the time{}", place, 100 * thermal,
                      thermal > kThermalFail ? "" : ": a warning, it fails above 5 %");
      verdict.action = "inspect cooling";
      verdicts.push_back(verdict);
    }
  }
}

double sum_of_errors(const std::vector<Window>& windows, std::size_t rank,
                     double HealthDelta::*count) {
  double sum = 0;
  for (const Window& window : windows) {
    const double errors = window.ranks[rank].errors.*count;
    if (std::isfinite(errors)) sum += errors;
  }
  return sum;
}

/// What the driver counted, and what it did not answer. Corrected errors are a remark.
void judge_errors(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const bool known = std::any_of(windows.begin(), windows.end(), [&](const Window& window) {
      const RankWindow& mine = window.ranks[r];
      return std::isfinite(mine.errors.ecc_uncorrected) || std::isfinite(mine.thermal_share) ||
             std::isfinite(mine.hardware_slowdown_share);
    });
    if (!known && !ranks[r].uuid.empty() && ranks[r].stalled.empty()) {
      Verdict verdict = on_rank(static_cast<int>(r), ranks[r]);
      verdict.outcome = Outcome::inconclusive;
      verdict.cause = fmt::format("{}: neither ECC errors nor throttling could be read",
                                  place_of(static_cast<int>(r), ranks[r]));
      verdict.action = "run bin/node_check: it says why NVML cannot be read";
      verdicts.push_back(verdict);
    }
    const auto add = [&](Outcome outcome, const std::string& cause, const char* action) {
      Verdict verdict = on_rank(static_cast<int>(r), ranks[r]);
      verdict.outcome = outcome;
      verdict.class_ = Class::hardware;
      verdict.cause = fmt::format("{}: {}", place_of(static_cast<int>(r), ranks[r]), cause);
      verdict.action = action;
      verdicts.push_back(verdict);
    };
    const double uncorrected = sum_of_errors(windows, r, &HealthDelta::ecc_uncorrected);
    const double corrected = sum_of_errors(windows, r, &HealthDelta::ecc_corrected);
    const double links = sum_of_errors(windows, r, &HealthDelta::nvlink_errors);
    if (uncorrected > 0)
      add(Outcome::fail, fmt::format("{:.0f} uncorrected ECC errors", uncorrected),
          "reset the GPU; replace it if they come back");
    if (ranks[r].remap_pending) add(Outcome::fail, "memory waits to be remapped", "reset the GPU");
    if (corrected > 0)
      add(Outcome::pass, fmt::format("{:.0f} corrected ECC errors: a warning", corrected), "");
    if (links > 0)
      add(Outcome::pass,
          fmt::format("{:.0f} NVLink CRC, replay or recovery errors: a warning", links),
          "inspect the GPU's NVLinks: bin/link_matrix");
    if (!ranks[r].stalled.empty())
      add(Outcome::fail, fmt::format("the driver does not answer: {}", ranks[r].stalled),
          "drain the node, reset the GPU or reboot");
  }
}

/// The XIDs of the windows. Warnings are remarks.
void judge_xids(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                std::vector<Verdict>& verdicts) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::vector<KernelEvent> events;
    for (const Window& window : windows)
      if (r < window.kernel_events.size() && window.kernel_events[r])
        events.insert(events.end(), window.kernel_events[r]->begin(),
                      window.kernel_events[r]->end());
    for (const Judgement& judgement : judge_kernel_events(events)) {
      if (judgement.severity != Severity::fail && judgement.severity != Severity::warn) continue;
      Verdict verdict = on_rank(static_cast<int>(r), ranks[r]);
      verdict.outcome = judgement.severity == Severity::fail ? Outcome::fail : Outcome::pass;
      verdict.class_ = judgement.class_;
      verdict.cause = fmt::format("{}: during the soak: {}",
                                  place_of(static_cast<int>(r), ranks[r]), judgement.cause);
      verdict.action = judgement.action;
      verdicts.push_back(verdict);
    }
  }
}

}  // namespace

Json record_of(const Incident& incident, const RankIdentity& identity) {
  const Mismatch& mismatch = incident.mismatch;
  Json fields{{"window", incident.window}, {"rank", incident.rank},
              {"host", identity.host},     {"gpu", identity.uuid},
              {"load", mismatch.load},     {"operation", mismatch.operation},
              {"where", mismatch.where},   {"cause", mismatch.cause}};
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
                                const std::vector<RankIdentity>& ranks, const Limits& limits,
                                const PeerRule& rule) {
  std::vector<Verdict> verdicts;
  judge_mismatches(incidents, ranks, verdicts);
  judge_rates(windows, ranks, limits, rule, verdicts);
  judge_throttling(windows, ranks, verdicts);
  judge_errors(windows, ranks, verdicts);
  judge_xids(windows, ranks, verdicts);
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
    for (const RankWindow& rank : window.ranks) work.gpu_hours += rank.seconds / 3600;
  }
  return work;
}

std::string unknown_xids(const std::vector<Window>& windows) {
  std::set<std::size_t> ranks;
  for (const Window& window : windows)
    for (std::size_t r = 0; r < window.kernel_events.size(); ++r)
      if (!window.kernel_events[r]) ranks.insert(r);
  return ranks.empty() ? ""
                       : fmt::format("XIDs: unknown on rank{} {}: /dev/kmsg cannot be read",
                                     ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

double energy_of(const std::vector<Window>& windows) {
  double energy = 0;
  for (const Window& window : windows)
    for (const RankWindow& rank : window.ranks) energy += rank.energy_j;
  return energy;
}

std::string rates_text(const std::vector<Window>& windows, const std::vector<ProductType>& types) {
  std::vector<double> all;
  std::vector<std::string> parts;
  for (const ProductType type : types) {
    std::vector<double> ratios;
    for (const Window& window : windows)
      for (const RankWindow& rank : window.ranks)
        if (window.steady_products == type && std::isfinite(rank.checked_over_unchecked))
          ratios.push_back(100 * rank.checked_over_unchecked);
    if (ratios.empty()) continue;
    parts.push_back(fmt::format("{} {:.1f}", name_of(type), median_of(ratios)));
    all.push_back(median_of(ratios));
  }
  if (all.empty()) return "";
  return fmt::format("checked products run at {:.1f} % of the rate of unchecked ones ({})",
                     median_of(all), fmt::join(parts, ", "));
}

Verdict judge_job(const std::vector<Window>& windows, const std::vector<LoadKind>& requested,
                  const std::vector<Verdict>& findings, const std::string& stopped_by) {
  Verdict verdict;
  verdict.name = "soak";
  double wrong = 0;
  for (const Window& window : windows) wrong += window.wrong();
  verdict.cause = statement_of(work_of(windows), wrong);
  if (!stopped_by.empty()) verdict.cause += fmt::format("; stopped by {}", stopped_by);
  for (const Verdict& finding : findings)
    verdict.outcome = std::max(verdict.outcome, finding.outcome);
  for (const LoadKind kind : requested) {
    for (std::size_t r = 0; !windows.empty() && r < windows.front().ranks.size(); ++r) {
      const auto at = static_cast<std::size_t>(kind);
      double checked = 0;
      for (const Window& window : windows) checked += window.ranks[r].checked[at];
      if (checked > 0) continue;
      verdict.outcome = std::max(verdict.outcome, Outcome::inconclusive);
      verdict.cause += fmt::format("; rank {} checked no {}", r, name_of(kind));
    }
  }
  // A wrong operation that no finding explains still fails.
  if (wrong > 0 && verdict.outcome == Outcome::pass) verdict.outcome = Outcome::fail;
  if (windows.empty()) verdict.outcome = std::max(verdict.outcome, Outcome::inconclusive);
  return verdict;
}

}  // namespace shakedown::node
