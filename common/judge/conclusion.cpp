#include "common/judge/judge.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "common/judge/series.hpp"
#include "common/types.hpp"

namespace shakedown::judge {
namespace {

constexpr std::size_t kListed = 3;
constexpr const char* kNothing = "nothing was measured";
constexpr const char* kNotChecked = "neither rates nor data were checked";
constexpr const char* kUnchecked = "rates not judged, data not checked";
constexpr const char* kRecord =
    "launch/acceptance --record-reference FILE on three nodes known to be good, then --reference "
    "FILE";

std::string listed(const std::vector<std::string>& names) {
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(kListed, names.size())));
  const std::string more =
      names.size() > kListed ? fmt::format(" and {} more", names.size() - kListed) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

/// The metric, and of a collective which of its rows.
std::string what_of(const Observation& o) {
  const auto condition = [&](const char* key) {
    const auto found = o.conditions.find(key);
    return found == o.conditions.end() ? "" : found->second;
  };
  const std::string bytes = condition("bytes");
  if (!o.metric.starts_with("collective/") || bytes.empty()) return o.metric;
  const std::string dtype = condition("dtype");
  return fmt::format("{} of {}{}{}, {}", o.metric,
                     readable_bytes(std::strtod(bytes.c_str(), nullptr)), dtype.empty() ? "" : " ",
                     dtype, condition("in_place") == "true" ? "in place" : "out of place");
}

class Conclusion {
 public:
  Conclusion(const Evidence& evidence, const Request& request, Judgement& judgement)
      : evidence_(evidence), request_(request), judgement_(judgement) {}

  void run(bool named, const std::map<std::string, std::string>& missed) {
    for (const std::string& node : nodes()) outcomes_[node];
    forget_peers_that_fail();
    blame_gpus_for_their_links();
    rate_findings();
    look_for_witnesses(missed);
    if (named) look_for_comparisons(missed);
    statements();
    forgive_single_slow_classes_of_cpus();
    look_for_checks();
    for (const auto& [node, own] : outcomes_) judgement_.nodes.push_back(verdict_of(node, own));
    std::stable_sort(judgement_.findings.begin(), judgement_.findings.end(),
                     [](const Verdict& a, const Verdict& b) { return a.outcome > b.outcome; });
    judgement_.job = verdict_of_job();
  }

 private:
  /// What counts against a node, worst first.
  struct Own {
    Outcome outcome = Outcome::pass;
    std::string cause;
    std::optional<Class> class_;
    std::string action;
    bool on_gpu = false;
  };

  const Observation& observation(const Judged& one) const {
    return evidence_.observations[one.observation];
  }

  std::vector<std::string> nodes() const {
    if (!evidence_.nodes.empty()) return evidence_.nodes;
    std::set<std::string> found;
    for (const Observation& o : evidence_.observations)
      found.insert(o.of.hosts.begin(), o.of.hosts.end());
    for (const Statement& each : evidence_.statements)
      found.insert(each.nodes.begin(), each.nodes.end());
    return {found.begin(), found.end()};
  }

  void count(const std::vector<std::string>& nodes, const Verdict& verdict, bool accepted = false) {
    Outcome outcome = verdict.outcome;
    const bool reason = outcome == Outcome::fail || outcome == Outcome::inconclusive;
    if (!reason)
      outcome = request_.strict && !accepted && outcome != Outcome::pass ? Outcome::inconclusive
                                                                         : Outcome::pass;
    // What several did together is traced to none of them.
    if (nodes.size() > 1 && outcome == Outcome::fail) {
      outcome = Outcome::inconclusive;
      several_failed_ = true;
    }
    for (const std::string& node : nodes) {
      Own& own = outcomes_[node];
      if (outcome <= own.outcome) continue;
      own.outcome = outcome;
      own.cause = verdict.cause;
      own.class_ = verdict.class_;
      own.action = verdict.action;
    }
  }

  // ---- rates ----

  /// One that fails by another metric is nobody's peer: where it leaves a single subject, nothing
  /// is in doubt any more.
  void forget_peers_that_fail() {
    std::set<std::string> failed;
    std::map<std::string, std::set<std::string>> good;  // metric: subjects
    for (const Judged& one : judgement_.judged)
      if (one.outcome == Outcome::fail) failed.insert(observation(one).of.key());
    if (failed.empty()) return;
    for (const Judged& one : judgement_.judged)
      if (const Observation& o = observation(one); !failed.contains(o.of.key()))
        good[o.metric].insert(o.of.key());
    for (Judged& one : judgement_.judged) {
      const Observation& o = observation(one);
      const bool in_doubt = one.outcome == Outcome::inconclusive || one.outcome == Outcome::warn;
      if (in_doubt && one.witness == Witness::peers && good[o.metric].size() == 1 &&
          one.slow_looks == 0) {
        one.outcome = Outcome::pass;
        one.witness = Witness::none;
        one.cause = "its peers fail";
      }
    }
  }

  /// A GPU three quarters of whose pairs, with two other GPUs or more, are slow is the suspect; not
  /// its links.
  void blame_gpus_for_their_links() {
    std::map<std::string, std::map<std::string, std::vector<std::size_t>>> pairs;  // metric, GPU
    for (std::size_t i = 0; i < judgement_.judged.size(); ++i) {
      const Observation& o = observation(judgement_.judged[i]);
      if (o.of.scope != Scope::link || o.of.ranks.size() != 2) continue;
      for (std::size_t end : {0, 1})
        pairs[o.metric + "|" + o.path_class][end_of(o, end)].push_back(i);
    }
    for (const auto& [metric, by_gpu] : pairs)
      for (const auto& [gpu, own] : by_gpu) {
        std::size_t slow = 0;
        std::set<std::string> others;  // of the slow ones
        for (const std::size_t i : own) {
          if (!is_slow(judgement_.judged[i])) continue;
          const Observation& o = observation(judgement_.judged[i]);
          ++slow;
          others.insert(end_of(o, end_of(o, 0) == gpu ? 1 : 0));
        }
        if (others.size() >= 2 && 4 * slow >= 3 * own.size()) blame(gpu, own);
      }
  }

  static bool is_slow(const Judged& one) {
    const bool warns = one.outcome == Outcome::warn && one.looks > 0 && one.slow_looks == one.looks;
    return one.outcome == Outcome::fail || one.outcome == Outcome::inconclusive || warns;
  }

  static std::string end_of(const Observation& o, std::size_t end) {
    return fmt::format("{} {} {}", o.of.ranks[end], o.of.hosts[end],
                       o.of.uuids.size() == 2 ? o.of.uuids[end] : "");
  }

  /// The first of the slowest.
  std::size_t worst_of(const std::vector<std::size_t>& some) const {
    return std::ranges::max(some, {}, [&](std::size_t i) { return judgement_.judged[i].r; });
  }

  void blame(const std::string& gpu, const std::vector<std::size_t>& pairs) {
    std::set<std::string> links, slow;  // several figures may be of one, as alone and all at once
    for (const std::size_t i : pairs) {
      const std::string& name = observation(judgement_.judged[i]).of.name;
      links.insert(name);
      if (!is_slow(judgement_.judged[i])) continue;
      explained_.insert(i);
      slow.insert(name);
    }
    const Judged& one = judgement_.judged[worst_of(pairs)];
    const Observation& o = observation(one);
    const std::size_t end = end_of(o, 0) == gpu ? 0 : 1;
    Verdict verdict;
    const bool known = o.of.uuids.size() == 2;
    verdict.scope = known ? Scope::gpu : Scope::rank;
    verdict.name = known ? o.of.uuids[end] : std::to_string(o.of.ranks[end]);
    verdict.outcome = one.outcome;
    verdict.cause = fmt::format("rank {} on {}: {}: {} of its {} links are slow, the worst: {}",
                                o.of.ranks[end], o.of.hosts[end], o.metric, slow.size(),
                                links.size(), one.cause);
    verdict.class_ = one.class_;
    verdict.action = one.action;
    add(verdict, one, {o.of.hosts[end]});
  }

  void add(Verdict verdict, const Judged& one, const std::vector<std::string>& hosts) {
    const Observation& o = observation(one);
    verdict.check = "rates";
    verdict.metric = o.metric;
    verdict.witness = one.witness == Witness::none ? "" : name_of(one.witness);
    verdict.slow_looks = one.slow_looks;
    verdict.looks = one.looks;
    verdict.hosts = distinct(hosts);
    judgement_.findings.push_back(verdict);
    // Groups of a stage are searched by launch/acceptance: what they amount to it states.
    if (o.of.scope == Scope::group && verdict.hosts.size() > 1 && !o.stage.empty()) return;
    count(verdict.hosts, verdict);
  }

  /// One per subject, class of rates and outcome: the worst metric, and which others.
  void rate_findings() {
    using Key = std::tuple<std::string, std::string, Outcome, int>;
    std::map<Key, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < judgement_.judged.size(); ++i) {
      const Judged& one = judgement_.judged[i];
      if (one.outcome == Outcome::pass || explained_.contains(i)) continue;
      const Observation& o = observation(one);
      const std::string rates = one.limit->rates.empty() ? o.metric : one.limit->rates;
      groups[{o.of.key(), rates, one.outcome, one.class_ ? static_cast<int>(*one.class_) : -1}]
          .push_back(i);
    }
    for (const auto& [key, own] : groups) {
      const std::size_t worst = worst_of(own);
      const Judged& one = judgement_.judged[worst];
      const Observation& o = observation(one);
      std::vector<std::string> others;
      for (const std::size_t i : own)
        if (const auto other = what_of(observation(judgement_.judged[i])); other != what_of(o))
          others.push_back(other);
      others = distinct(others);
      Verdict verdict{
          o.of.scope,
          o.of.name,
          one.outcome,
          fmt::format("{}{}: {}{}", o.of.text() == o.of.name ? "" : o.of.text() + ": ", what_of(o),
                      one.witness == Witness::none ? "not judged: " + one.cause : one.cause,
                      others.empty() ? "" : "; also " + listed(others)),
          one.class_,
          one.action};
      add(verdict, one, o.of.hosts);
    }
  }

  // ---- witnesses ----

  static bool must_be_judged(const Judged& one, const Observation& o) {
    return !one.limit->rates.empty() && !one.limit->warns && o.backend != "cpu" &&
           distinct(o.of.hosts).size() == 1;
  }

  void look_for_witnesses(const std::map<std::string, std::string>& missed) {
    // A class of a subject is judged when one of its metrics is.
    std::map<std::tuple<std::string, std::string, std::string>, bool>
        judged;  // rates, node, subject
    std::map<std::string, std::string> why;
    // Where each GPU's own is measured, what the node's do together needs no witness of its own.
    std::set<std::pair<std::string, std::string>> by_gpu;  // rates, node
    std::map<std::string, std::set<std::string>> gpus;     // node: subjects
    const auto is_gpu = [](const std::string& subject) { return subject.starts_with("gpu "); };
    for (const Judged& one : judgement_.judged) {
      const Observation& o = observation(one);
      for (const std::string& host : o.of.hosts) {
        outcomes_[host].on_gpu |= o.backend != "cpu";
        if (is_gpu(o.of.key()) && o.backend != "cpu") gpus[host].insert(o.of.key());
      }
      if (!must_be_judged(one, o)) continue;
      // A link that is not there cannot be slow; what is INCONCLUSIVE has said why.
      const bool settled = one.witness != Witness::none || one.outcome == Outcome::inconclusive ||
                           (o.of.scope == Scope::link && !one.cause.empty());
      bool& witnessed = judged[{one.limit->rates, o.of.hosts.front(), o.of.key()}];
      witnessed = witnessed || settled;
      if (is_gpu(o.of.key())) by_gpu.emplace(one.limit->rates, o.of.hosts.front());
      if (one.witness != Witness::none) continue;
      const auto reason = missed.find(o.metric);
      why[one.limit->rates] = reason == missed.end() ? "no reference, and no peers, of " + o.board
                                                     : "no reference compares: " + reason->second;
    }
    std::map<std::string, std::set<std::string>> open;  // rates: nodes
    std::map<std::string, std::set<std::string>> measured;
    for (const auto& [key, witnessed] : judged) {
      const auto& [rates, node, subject] = key;
      if (by_gpu.contains({rates, node}) && !is_gpu(subject)) continue;
      measured[std::get<0>(key)].insert(std::get<1>(key));
      if (!witnessed) open[std::get<0>(key)].insert(std::get<1>(key));
    }
    const auto of_each_gpu = [&](const std::string& rates, const std::string& node) {
      return !by_gpu.contains({rates, node}) ||
             std::all_of(gpus[node].begin(), gpus[node].end(), [&](const std::string& gpu) {
               return judged.contains({rates, node, gpu});
             });
    };
    for (const std::string& rates : request_.rates)
      for (const auto& [node, own] : outcomes_)
        if (!(measured[rates].contains(node) && of_each_gpu(rates, node))) {
          open[rates].insert(node);
          const bool on_cpu = has_observations(node) && !own.on_gpu;
          why.try_emplace(rates, measured[rates].contains(node) ? "not every GPU was measured"
                                 : on_cpu                       ? "its ranks ran on the CPU"
                                                                : kNothing);
        }
    for (const auto& [rates, nodes] : open)
      unjudged(rates, {nodes.begin(), nodes.end()}, why[rates]);
  }

  bool has_observations(const std::string& node) {
    if (observed_.empty())
      for (const Observation& o : evidence_.observations)
        observed_.insert(o.of.hosts.begin(), o.of.hosts.end());
    return observed_.contains(node);
  }

  /// What keeps a node from a verdict: to record a reference helps.
  void hold(const std::string& node, const std::string& metric, Outcome outcome,
            const std::string& cause, std::optional<Class> class_) {
    Verdict verdict{Scope::node, node, outcome, cause, class_, kRecord};
    verdict.check = "rates";
    verdict.metric = metric;
    verdict.hosts = {node};
    judgement_.findings.push_back(verdict);
    count({node}, verdict);
  }

  void unjudged(const std::string& rates, const std::vector<std::string>& nodes,
                const std::string& why) {
    judgement_.unjudged.push_back({rates, nodes, why, kRecord});
    for (const std::string& node : nodes)
      hold(node, rates, request_.unasked ? Outcome::warn : Outcome::inconclusive,
           fmt::format("{} not judged: {}", rates, why), std::nullopt);
  }

  /// A reference that the user named must compare something of each node.
  void look_for_comparisons(const std::map<std::string, std::string>& missed) {
    std::set<std::string> compared;
    for (const Judged& one : judgement_.judged)
      if (one.witness == Witness::reference || one.witness == Witness::bar)
        compared.insert(observation(one).of.hosts.begin(), observation(one).of.hosts.end());
    const std::string why =
        missed.empty() ? "it has no such figure of this board"
                       : fmt::format("{}: {}", missed.begin()->first, missed.begin()->second);
    for (const std::string& node : nodes())
      if (!compared.contains(node) && has_observations(node))
        hold(node, "reference", Outcome::inconclusive,
             "--reference compares none of its rates: " + why, Class::config);
  }

  // ---- together ----

  void statements() {
    for (const Statement& each : evidence_.statements) {
      if (each.nodes.empty() && each.verdict.outcome >= Outcome::inconclusive &&
          each.verdict.outcome > worst_of_job_) {
        worst_of_job_ = each.verdict.outcome;
        cause_of_job_ = "; " + each.verdict.cause;
      }
      count(each.nodes, each.verdict, each.accepted);
    }
  }

  /// What other work leaves of a CPU may be slow in one class of rates; in two or more the node is.
  void forgive_single_slow_classes_of_cpus() {
    std::map<std::string, std::set<std::string>> slow;
    for (const Judged& one : judgement_.judged)
      if (observation(one).backend == "cpu" && one.witness == Witness::peers && is_slow(one))
        for (const std::string& host : observation(one).of.hosts)
          slow[host].insert(one.limit->rates);
    std::set<std::string> forgiven;
    for (const auto& [host, rates] : slow)
      if (rates.size() < 2) forgiven.insert(host);
    if (forgiven.empty()) return;
    std::erase_if(judgement_.findings, [&](const Verdict& verdict) {
      return verdict.witness == name_of(Witness::peers) &&
             verdict.outcome == Outcome::inconclusive &&
             std::all_of(verdict.hosts.begin(), verdict.hosts.end(),
                         [&](const std::string& host) { return forgiven.contains(host); });
    });
    for (const std::string& host : forgiven) {
      Own& own = outcomes_[host];
      own = {Outcome::pass, "", std::nullopt, "", own.on_gpu};
    }
    for (const Verdict& verdict : judgement_.findings) count(verdict.hosts, verdict);
    for (const Statement& each : evidence_.statements)
      count(each.nodes, each.verdict, each.accepted);
  }

  /// No reason against a node is no pass: its data were right, its rates were judged, or a program
  /// passed it.
  void look_for_checks() {
    std::set<std::string> measured, checked, wrong;
    const auto add = [](std::set<std::string>& to, const std::vector<std::string>& nodes) {
      to.insert(nodes.begin(), nodes.end());
    };
    for (const Observation& o : evidence_.observations) {
      if (o.check == Check::wrong) add(wrong, o.of.hosts);
      if (o.taken != Taken::measured ||
          std::ranges::none_of(o.samples, [](double sample) { return std::isfinite(sample); }))
        continue;
      add(measured, o.of.hosts);
      if (o.check == Check::verified) add(checked, o.of.hosts);
    }
    for (const Judged& one : judgement_.judged)
      if (one.witness != Witness::none) add(checked, observation(one).of.hosts);
    for (const Statement& each : evidence_.statements)
      for (const std::string& node : each.nodes)  // of figures that nobody checked it says nothing
        if (each.verdict.outcome == Outcome::pass && !measured.contains(node)) checked.insert(node);
    for (auto& [node, own] : outcomes_) {
      const bool is_wrong = wrong.contains(node);
      if (own.outcome != Outcome::pass || (checked.contains(node) && !is_wrong)) continue;
      const bool unknown = measured.contains(node) && !is_wrong;
      own.outcome = unknown && !request_.strict ? Outcome::unknown : Outcome::inconclusive;
      own.cause = is_wrong ? "data were wrong" : unknown ? kUnchecked : kNotChecked;
    }
  }

  Verdict verdict_of(const std::string& node, const Own& own) const {
    Verdict verdict{Scope::node, node, own.outcome, own.cause, own.class_, own.action};
    if (own.outcome == Outcome::pass) verdict.cause = cause_of_pass(own.on_gpu);
    return verdict;
  }

  /// What it would have found.
  std::string cause_of_pass(bool on_gpu) const {
    const std::string found = on_gpu ? sentence_of(judgement_.would_have_found) : "";
    if (!found.empty()) return found;
    const bool unchecked = std::ranges::all_of(
        evidence_.observations, [](const auto& one) { return one.check == Check::unchecked; });
    if (std::ranges::count(judgement_.judged, Witness::bar, &Judged::witness) > 0)
      return unchecked ? "bars reached, data not checked" : "bars reached, all data right";
    if (on_gpu ? judgement_.unjudged.empty() : unchecked) return "all checks passed";
    return on_gpu ? "all data right; rates not judged" : "correctness only";
  }

  Verdict verdict_of_job() const {
    Verdict job{Scope::job, request_.program, Outcome::pass, ""};
    job.outcome = worst_of_job_;
    if (several_failed_) job.outcome = Outcome::fail;
    std::map<Outcome, int> counts;
    bool on_gpu = false;
    for (const auto& [node, own] : outcomes_) {
      job.outcome = std::max(job.outcome, own.outcome);
      ++counts[own.outcome];
      on_gpu |= own.on_gpu;
    }
    if (outcomes_.empty()) {
      job.outcome = std::max(job.outcome, Outcome::inconclusive);
      job.cause = kNotChecked;
    } else if (job.outcome == Outcome::pass) {
      job.cause = cause_of_pass(on_gpu);
    } else if (job.outcome == Outcome::unknown) {
      job.cause = kUnchecked;
    } else {
      std::vector<std::string> parts;
      for (const Outcome outcome :
           {Outcome::fail, Outcome::inconclusive, Outcome::unknown, Outcome::pass})
        if (counts.contains(outcome))
          parts.push_back(fmt::format("{} {}", counts.at(outcome), name_of(outcome)));
      job.cause = fmt::format("{} node{}: {}{}", outcomes_.size(), outcomes_.size() == 1 ? "" : "s",
                              fmt::join(parts, ", "), cause_of_job_);
    }
    job.check = judgement_.findings.empty() ? "" : "rates";
    return job;
  }

  const Evidence& evidence_;
  const Request& request_;
  Judgement& judgement_;
  std::map<std::string, Own> outcomes_;  // by node
  std::set<std::size_t> explained_;      // judged links whose GPU is to blame
  std::set<std::string> observed_;
  Outcome worst_of_job_ = Outcome::pass;  // of statements that name no node
  std::string cause_of_job_;
  bool several_failed_ = false;
};

}  // namespace

void conclude(const Evidence& evidence, bool named,
              const std::map<std::string, std::string>& missed, const Request& request,
              Judgement& judgement) {
  Conclusion(evidence, request, judgement).run(named, missed);
}

namespace {

/// What a limit is worth in the metric's unit: the value from which on it fails.
Json limit_of(const Observation& o, const Judged& one) {
  if (one.witness == Witness::none || !std::isfinite(one.usual)) return {};
  const double r = one.witness == Witness::bar ? 0 : one.floor;
  return slowed(o, one.usual, r);
}

Json figure_of(const Observation& o, const Judged& one, const std::string& record) {
  Json line = record_of(o);
  line.erase("check");
  line.erase("outcome");
  line["nodes"] = distinct(o.of.hosts);
  if (!o.stage.empty()) line["stage"] = o.stage;
  line["record"] = record;
  line["value"] = statistic_of(o.samples, one.limit->statistic, o.less_is_better());
  line["higher_is_better"] = !o.less_is_better();
  line["outcome"] = name_of(one.outcome);
  if (!one.limit->rates.empty()) line["rates"] = one.limit->rates;
  if (!one.cause.empty()) line["cause"] = one.cause;
  if (one.witness == Witness::none) return line;
  line["witness"] = name_of(one.witness);
  line["usual"] = one.usual;
  line["limit"] = limit_of(o, one);
  line["slower"] = one.r;
  line["slow_looks"] = one.slow_looks;
  line["looks"] = one.looks;
  return line;
}

}  // namespace

void write_lines(const Read& read, const Judgement& judgement,
                 const std::function<void(const std::string& kind, const Json& fields)>& write) {
  for (const Judged& one : judgement.judged)
    write("figure", figure_of(read.evidence.observations[one.observation], one,
                              read.records[one.observation]));
  for (const Verdict& finding : judgement.findings) {
    Json fields = shakedown::record_of(finding);
    fields["nodes"] = finding.hosts;
    fields.erase("hosts");
    write("verdict", fields);
  }
  for (const Verdict& node : judgement.nodes) write("verdict", shakedown::record_of(node));
  write("verdict", shakedown::record_of(judgement.job));
  for (const Found& found : judgement.would_have_found) {
    Json line{{"rates", found.rates},
              {"metric", found.metric},
              {"witness", name_of(found.witness)},
              {"slow_down", found.slow_down}};
    if (found.warns_from > 0) line["warns_from"] = found.warns_from;
    write("found", line);
  }
  for (const Unjudged& each : judgement.unjudged)
    write(
        "unjudged",
        {{"rates", each.rates}, {"nodes", each.nodes}, {"why", each.why}, {"action", each.action}});
}

std::string text_of(const Judgement& judgement) {
  std::string text;
  for (const Verdict& finding : judgement.findings) text += line_of(finding) + "\n";
  text += line_of(judgement.job) + "\n";
  const std::string found = sentence_of(judgement.would_have_found);
  if (judgement.job.outcome != Outcome::pass && !found.empty()) text += found + "\n";
  return text;
}

std::string text_of_stated(const Judgement& judgement) {
  std::set<std::string> said;
  for (const Verdict& finding : judgement.findings) said.insert(finding.cause);
  std::string text;
  for (const Verdict& node : judgement.nodes)
    if (node.outcome >= Outcome::inconclusive && !said.contains(node.cause))
      text += line_of(node) + "\n";
  return text;
}

}  // namespace shakedown::judge
