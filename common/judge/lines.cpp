#include "common/judge/lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "common/judge/series.hpp"
#include "common/judge/statistics.hpp"

namespace shakedown::judge {
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
