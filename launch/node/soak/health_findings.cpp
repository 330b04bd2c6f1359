#include "launch/node/soak/health_findings.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "launch/node/health/rules/kernel_rules.hpp"

namespace shakedown::node {
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

void judge_throttling(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                      std::vector<Verdict>& verdicts) {
  constexpr double kThermalRemark = 0.01;
  constexpr double kThermalFail = 0.05;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double slowdown = share_of_time(windows, r, &RankWindow::hardware_slowdown_share);
    const double thermal = share_of_time(windows, r, &RankWindow::thermal_share);
    Verdict verdict = on_rank(static_cast<int>(r), ranks[r], "throttling");
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
      verdict.outcome = thermal > kThermalFail ? Outcome::fail : Outcome::warn;
      verdict.cause =
          fmt::format("{}: thermal slowdown in {:.2g} % of the time{}", place, 100 * thermal,
                      thermal > kThermalFail ? "" : ": it fails above 5 %");
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

void judge_unknown(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                   std::vector<Verdict>& verdicts) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (windows.empty() || ranks[r].uuid.empty() || !ranks[r].stalled.empty()) continue;
    std::vector<std::string> unknown;
    for (const Watched& watched : kWatched) {
      if (watched.of_ecc && ranks[r].lacks_ecc) continue;
      const auto is_known = [&](const Window& window) {
        return std::isfinite(watched.value(window.ranks[r]));
      };
      const auto known = std::count_if(windows.begin(), windows.end(), is_known);
      if (2 * known < std::ssize(windows) || !is_known(windows.back()))
        unknown.push_back(
            fmt::format("{} in {} of {}{}", watched.what, known, windows.size(),
                        known > 0 && !is_known(windows.back()) ? ", not the last" : ""));
    }
    if (unknown.empty()) continue;
    Verdict verdict = on_rank(static_cast<int>(r), ranks[r], "health-unknown");
    verdict.outcome = Outcome::inconclusive;
    verdict.cause = fmt::format("{}: windows in which its health could be read: {}",
                                place_of(static_cast<int>(r), ranks[r]), fmt::join(unknown, "; "));
    verdict.action = "run bin/node_check: it says why NVML cannot be read";
    verdicts.push_back(verdict);
  }
}

/// What the driver counted, and what it did not answer. Corrected errors are a warning.
void judge_errors(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto add = [&](Outcome outcome, const std::string& cause, const char* action) {
      Verdict verdict = on_rank(static_cast<int>(r), ranks[r], "driver-errors");
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
    if (ranks[r].lacks_ecc)
      add(Outcome::warn,
          "no ECC, or it is off: errors of its memory are found by the memory load alone", "");
    if (ranks[r].remap_pending) add(Outcome::fail, "memory waits to be remapped", "reset the GPU");
    if (corrected > 0)
      add(Outcome::warn, fmt::format("{:.0f} corrected ECC errors", corrected), "");
    if (links > 0)
      add(Outcome::warn, fmt::format("{:.0f} NVLink CRC, replay or recovery errors", links),
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
    const auto same_host = [&](const RankIdentity& rank) { return rank.host == ranks[r].host; };
    const bool first = std::find_if(ranks.begin(), ranks.end(), same_host) - ranks.begin() ==
                       static_cast<std::ptrdiff_t>(r);
    for (const Judgement& judgement : judge_kernel_events(events)) {
      const bool of_switch = judgement.class_ == Class::infrastructure;  // seen by all its ranks
      if (judgement.outcome == Outcome::pass || (of_switch && !first)) continue;
      Verdict verdict = on_rank(static_cast<int>(r), ranks[r], "xid");
      if (of_switch) {
        verdict.scope = Scope::node;
        verdict.name = ranks[r].host;
      }
      verdict.outcome =
          judgement.outcome == Outcome::unknown ? Outcome::inconclusive : *judgement.outcome;
      verdict.class_ = judgement.class_;
      verdict.cause = fmt::format("{}: during the soak: {}",
                                  place_of(static_cast<int>(r), ranks[r]), judgement.cause);
      verdict.action = judgement.action;
      verdicts.push_back(verdict);
    }
  }
}

}  // namespace

void judge_health(const std::vector<Window>& windows, const std::vector<RankIdentity>& ranks,
                  std::vector<Verdict>& verdicts) {
  judge_unknown(windows, ranks, verdicts);
  judge_throttling(windows, ranks, verdicts);
  judge_errors(windows, ranks, verdicts);
  judge_xids(windows, ranks, verdicts);
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

}  // namespace shakedown::node
