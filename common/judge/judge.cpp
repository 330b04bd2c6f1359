#include "common/judge/judge.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "common/judge/series.hpp"
#include "common/judge/witnesses.hpp"
#include "common/statistics.hpp"

namespace shakedown::judge {
namespace {

constexpr const char* kWithoutReference = " without a reference";
constexpr const char* kClock = "/clock_mhz";

/// Judges the metrics one by one.
class Rates {
 public:
  Rates(const Evidence& evidence, const References& references, const Limits& limits,
        const Boards& boards)
      : observations_(evidence.observations),
        references_(references),
        boards_(boards),
        all_(peers_of(evidence.observations, limits, boards)) {}

  void judge(Judgement& judgement, std::map<std::string, std::string>& missed) {
    for (const bool memory : {true, false})  // which explains slow products
      for (const Peers& peers : all_)
        if (observations_[peers.observation].metric.starts_with("memory/") == memory)
          judge(peers, judgement, missed);
    would_have_found(judgement);
  }

 private:
  void judge(const Peers& peers, Judgement& judgement, std::map<std::string, std::string>& missed) {
    const Testimonies heard = hear(peers, observations_, references_);
    const std::string& metric = observations_[peers.observation].metric;
    if (!heard.missed.empty()) missed[metric] = heard.missed;
    const Context context = context_of(peers, heard);
    for (std::size_t i = 0; i < peers.series.size(); ++i) {
      judgement.judged.push_back(judged(peers, peers.series[i], heard.of[i], heard, context));
      const Judged& one = judgement.judged.back();
      if (metric.starts_with("memory/") && one.outcome == Outcome::fail)
        slow_memories_.insert(peers.series[i].subject);
    }
    if (observations_[peers.observation].backend == "cpu") return;  // whose rates never fail
    for (std::size_t i = 0; i < peers.series.size(); ++i)
      note_found(*peers.limit, metric, peers.series[i].subject, heard.of[i]);
  }

  Judged judged(const Peers& peers, const Series& series, const std::vector<Testimony>& said,
                const Testimonies& heard, Context context) {
    const Limit& limit = *peers.limit;
    Judged one;
    one.limit = &limit;
    one.observation = series.looks.back().observation;
    one.looks = static_cast<int>(series.looks.size());
    one.taken = series.taken;
    const Observation& o = observations_[one.observation];
    if (!series.judges()) {
      one.cause = series.unjudged;
      // GPUs without peer access are nobody's fault; what others disturb is not the device's.
      // What only warns, and a CPU's rates, decide nothing unless the user has a bar for them.
      const bool decides = (!limit.warns && o.backend != "cpu") || limit.least || limit.most;
      const bool lacks = series.absent && o.metric.starts_with("link/");
      one.outcome = lacks || !decides ? Outcome::pass : Outcome::inconclusive;
      if (series.disturbed) {
        one.class_ = Class::environment;
        one.action = "end them, or run again when it is free";
      }
      return one;
    }
    if (limit.least || limit.most) return by_bar(one, series, limit);
    context.memory_slow = slow_memories_.contains(series.subject);
    context.all_alike = heard.all_alike;
    const Testimony* worst = nullptr;
    Outcome outcome = Outcome::pass;
    bool cleared = false;  // by a reference: what differs from peers is then no failure
    for (const Testimony& each : said) {
      if (each.may_fail && one.witness == Witness::none) {
        one.witness = each.witness;
        keep(one, each);
      }
      Outcome by = outcome_of(each, limit, o);
      if (each.witness == Witness::peers && cleared)
        by = each.fails() ? Outcome::warn : Outcome::pass;
      cleared = cleared || (each.witness == Witness::reference && each.may_fail && each.passes());
      if (by > outcome) {
        outcome = by;
        worst = &each;
      }
    }
    if (worst == nullptr) return one;
    one.witness = worst->witness;
    keep(one, *worst);
    one.outcome = outcome;
    const Explanation why = explain(o, one.r, *worst, limit, context);
    one.class_ = why.class_;
    one.action = why.action;
    if (why.warns && one.outcome == Outcome::fail) one.outcome = Outcome::warn;
    one.cause = cause_of(o, one, *worst, why.cause);
    return one;
  }

  Judged by_bar(Judged one, const Series& series, const Limit& limit) const {
    one.witness = Witness::bar;
    const auto missed = [&](const Look& look) {
      return (limit.least && look.value < *limit.least) || (limit.most && look.value > *limit.most);
    };
    one.slow_looks =
        static_cast<int>(std::count_if(series.looks.begin(), series.looks.end(), missed));
    const auto last = series.looks.end() - static_cast<std::ptrdiff_t>(series.last);
    const Observation& o = observations_[one.observation];
    const double best =
        std::min_element(last, series.looks.end(), [&](const Look& a, const Look& b) {
          return o.less_is_better() ? a.value < b.value : a.value > b.value;
        })->value;
    const bool too_small = limit.least && !(limit.most && best > *limit.most);
    one.usual = too_small ? *limit.least : *limit.most;
    one.r = slower_by(o, best, one.usual);
    if (std::all_of(last, series.looks.end(), missed)) {
      one.outcome = Outcome::fail;
      one.class_ = limit.class_;
      one.action = limit.action;
      one.cause = fmt::format("{:.4g} {}, {} {:.4g}", best, o.unit,
                              too_small ? "at least" : "at most", one.usual);
    }
    return one;
  }

  static Outcome outcome_of(const Testimony& said, const Limit& limit, const Observation& o) {
    if (said.undecided && said.may_fail) return Outcome::inconclusive;
    if (said.fails()) return said.may_fail ? Outcome::fail : Outcome::warn;
    // One slow look of a best is other work; of a median it is worth a remark.
    const int noticed = limit.statistic == Statistic::best ? 2 : 1;
    if (said.slow() >= noticed) return Outcome::warn;
    const bool low_clock =
        o.metric.ends_with(kClock) && said.witness != Witness::first_principles &&
        (said.witness != Witness::peers || said.may_fail) &&
        std::all_of(said.r.begin(), said.r.end(), [&](double r) { return r > limit.floor; });
    return low_clock ? Outcome::warn : Outcome::pass;
  }

  static void keep(Judged& one, const Testimony& said) {
    one.usual = said.usual;
    one.floor = said.floor;
    one.slow_looks = said.slow();
    one.looks = static_cast<int>(said.r.size());
    one.r = said.least();
  }

  std::string cause_of(const Observation& o, const Judged& one, const Testimony& said,
                       const std::string& why) const {
    const double value = statistic_of(o.samples, one.limit->statistic, o.less_is_better());
    std::string text;
    if (said.witness == Witness::first_principles)
      text = fmt::format("{:.4g} {}, below {}", value, o.unit, said.text);
    else if (std::isinf(one.r))
      text =
          fmt::format("{:.4g} {}, compared with {:.4g} of {}", value, o.unit, one.usual, said.text);
    else
      text = fmt::format("{:.4g} {}, {} than {:.4g} of {}", value, o.unit,
                         one.r >= 1 ? fmt::format("{:.2f} times slower", 1 + one.r)
                                    : fmt::format("{:.1f} % slower", 100 * std::max(one.r, 0.0)),
                         one.usual, said.text);
    if (said.undecided && said.witness == Witness::peers)
      text += said.fails() ? "; which of them is right is not known"
                           : "; another is far slower, and which of them is right is not known";
    if (one.looks > 1 && one.slow_looks > 0)
      text += fmt::format("; slow in {} of {} looks", one.slow_looks, one.looks);
    if (!why.empty()) text += "; " + why;
    return text;
  }

  Context context_of(const Peers& peers, const Testimonies& heard) const {
    Context context;
    const Observation& o = observations_[peers.observation];
    const auto board = boards_.find(o.pci_device_id, o.board, o.compute_capability);
    if (board && board->known) context.usual_power_limit_w = board->power_w;
    std::vector<double> temperatures;
    for (const Series& series : peers.series) {
      const Circumstances& seen = observations_[series.looks.back().observation].seen;
      if (std::isfinite(seen.temperature_c)) temperatures.push_back(seen.temperature_c);
    }
    if (temperatures.size() > 1) context.usual_temperature_c = median_of(temperatures);
    if (heard.figure != nullptr) {
      if (std::isfinite(heard.figure->power_limit_w))
        context.usual_power_limit_w = heard.figure->power_limit_w;
      if (std::isfinite(heard.figure->temperature_c))
        context.usual_temperature_c = heard.figure->temperature_c;
    }
    return context;
  }

  /// The smallest that any witness finds. What is a property of the GPU, and its clock, is found
  /// in whichever program measured it best.
  void note_found(const Limit& limit, const std::string& metric, const std::string& subject,
                  const std::vector<Testimony>& said) {
    const Testimony* best = nullptr;
    for (const Testimony& each : said)
      if (each.may_fail && !each.undecided && std::isfinite(each.finds) &&
          (best == nullptr || each.finds < best->finds))
        best = &each;
    // The clock is no class of rates: it explains, and warns before it fails.
    const bool clock = metric.ends_with(kClock);
    const std::string rates = clock ? "clock" : limit.rates;
    if (best == nullptr || limit.warns || rates.empty()) return;
    const bool warns = clock && best->witness != Witness::first_principles;
    const Found here{rates, metric, best->witness, best->finds, warns ? limit.floor : 0};
    const std::string of =
        limit.constant || clock ? metric + " of " + subject : fmt::format("{}", finds_.size());
    const auto [known, is_new] = finds_.try_emplace({rates, of}, Finds{here, limit.floor});
    if (!is_new && here.slow_down < known->second.found.slow_down) known->second.found = here;
    if (std::find(classes_.begin(), classes_.end(), rates) == classes_.end())
      classes_.push_back(rates);
  }

  /// Of a class of rates its sharpest metrics count, which are those with the smallest floor; of
  /// these, and of the subjects, the worst. Where some have no reference and no peers, the worst of
  /// both.
  void would_have_found(Judgement& judgement) const {
    for (const std::string& rates : classes_) {
      const Finds* compared = nullptr;
      const Finds* coarse = nullptr;
      for (const auto& [key, each] : finds_) {
        if (key.first != rates) continue;
        const Finds*& worst = each.found.witness == Witness::first_principles ? coarse : compared;
        if (worst == nullptr || each.floor < worst->floor ||
            (each.floor == worst->floor && each.found.slow_down > worst->found.slow_down))
          worst = &each;
      }
      if (compared != nullptr) judgement.would_have_found.push_back(compared->found);
      if (coarse == nullptr || (compared != nullptr && compared->floor < coarse->floor)) continue;
      judgement.would_have_found.push_back(coarse->found);
      if (compared != nullptr) judgement.would_have_found.back().rates += kWithoutReference;
    }
  }

  struct Finds {
    Found found;
    double floor;
  };

  const std::vector<Observation>& observations_;
  const References& references_;
  const Boards& boards_;
  std::vector<Peers> all_;
  std::set<std::string> slow_memories_;                         // subjects
  std::map<std::pair<std::string, std::string>, Finds> finds_;  // by class of rates, and of what
  std::vector<std::string> classes_;                            // in the order of judging
};

}  // namespace

const char* name_of(Witness witness) {
  constexpr std::array kNames{"none", "bar", "reference", "first_principles", "peers"};
  return kNames.at(static_cast<std::size_t>(witness));
}

Judgement judge(const Evidence& evidence, const References& references, const Limits& limits,
                const Boards& boards, const Request& request) {
  Judgement judgement;
  std::map<std::string, std::string> missed;  // by metric
  Rates(evidence, references, limits, boards).judge(judgement, missed);
  conclude(evidence, references.named(), missed, request, judgement);
  return judgement;
}

std::vector<std::size_t> suspects(const Judgement& judgement) {
  std::vector<std::size_t> found;
  for (const Judged& one : judgement.judged) {
    const bool slow = one.looks > 0 && one.slow_looks == one.looks && one.outcome != Outcome::pass;
    if (slow && one.taken <= one.limit->looks) found.push_back(one.observation);
  }
  return found;
}

std::string sentence_of(const std::vector<Found>& found) {
  if (found.empty()) return "";
  std::vector<std::string> parts;
  for (const Found& each : found) {
    std::string rates = each.rates;
    std::replace(rates.begin(), rates.end(), '_', ' ');
    parts.push_back(fmt::format("{} {:.1f} %{}", rates,
                                std::max(0.0, std::ceil(1e3 * each.slow_down - 1e-9)) / 10,
                                rates == "products" ? " more cycles" : ""));
    if (each.warns_from > 0)
      parts.back() += fmt::format(" (from {:g} % a warning)", 100 * each.warns_from);
  }
  return fmt::format("would have found at 99 %: {}", fmt::join(parts, ", "));
}

}  // namespace shakedown::judge
