// The rules on a GPU's reading and on a host's facts: rules.txt has for each what trips it, what
// must not, and every way in which another tool passed what it had not measured.
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "launch/node/health/rules/rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::node {
namespace {

using enum Outcome;

/// Eight GPUs of a node, the first with its changes, the others with those of its peers.
struct Setting {
  Json changes = Json::object(), of_peers = Json::object();
  int peers = 7;
  bool under_load = false;
};

/// All findings about the first GPU.
std::vector<Finding> findings_of(const Setting& setting) {
  std::vector<GpuReading> gpus;
  for (int i = 0; i <= setting.peers; ++i) {
    Json reading = Json(healthy_h200(i));
    change(reading, i == 0 ? setting.changes : setting.of_peers);
    gpus.push_back(read_as<GpuReading>(reading));
  }
  GpuContext context = context_of(gpus);
  context.our_pids = {4711};
  context.under_load = setting.under_load;
  return judge_gpu("n0", gpus[0], context);
}

Finding look_at(const std::string& rule, const Json& changes) {
  return of_check(findings_of({changes}), rule).front();
}

/// "alone loaded all {CHANGES}", as gpu_rules.txt has it.
Setting setting_of(const std::string& given) {
  std::istringstream in(given);
  Setting setting;
  std::string word;
  const auto changes = [&] {
    Json json;
    in >> json;
    return json;
  };
  while (in >> std::ws && in.peek() != '{') {
    in >> word;
    if (word == "alone") setting.peers = 0;
    if (word == "two") setting.peers = 1;
    if (word == "loaded") setting.under_load = true;
    if (word == "peers") setting.of_peers = changes();
  }
  setting.changes = changes();
  if (word == "all") setting.of_peers = setting.changes;
  return setting;
}

/// "RULE {FACTS}" of the rules on a host.
std::string judged_of_host(const std::string& given) {
  std::istringstream in(given);
  std::string rule, lines;
  Json facts;
  in >> rule >> facts;
  for (const Judgement& judgement : found_by_rule(facts, rule)) lines += line_of(judgement) + "\n";
  return lines;
}

}  // namespace

TEST_CASE("what the rules find of GPUs", "[node][rules][closed]") {
  std::set<std::string> tripped;
  test::check_transcript("tests/node/gpu_rules.txt", [&](const std::string& given) {
    const auto found = not_passed(findings_of(setting_of(given)));
    for (const Finding& finding : found) {
      tripped.insert(finding.check);
      CHECK(finding.verdict.name.starts_with(finding.verdict.name == "GPU 0" ? "" : "GPU-n0-"));
      // What is neither a pass nor a failure does not let the node pass.
      if (finding.outcome != inconclusive) continue;
      CHECK(verdict_of_job({finding}, false).outcome == inconclusive);
      CHECK_FALSE(finding.verdict.action.empty());
    }
    return lines_of(found);
  });
  for (const GpuRule& rule : gpu_rules()) {
    INFO(rule.name);
    CHECK(tripped.contains(rule.name));
    CHECK(std::string(rule.what) != "");
  }
}

TEST_CASE("what the rules find of hosts", "[node][rules][facts]") {
  test::check_transcript("tests/node/host_rules.txt", judged_of_host);
}

TEST_CASE("a recorded H200 is healthy, what its VM hides is unknown", "[node][rules]") {
  const auto host = read_as<HostGpus>(fixture("h200_recorded.json"));
  std::set<std::string> not_passed;
  for (const Finding& finding : judge_gpu("n0", host.gpus.at(0), context_of(host.gpus))) {
    if (finding.outcome == pass) continue;
    CHECK(finding.outcome == unknown);
    not_passed.insert(finding.check);
  }
  CHECK(not_passed == std::set<std::string>{"nvlink-count", "nvlink-speed", "nvlink-errors"});
}

TEST_CASE("soperator: what is unknown is counted", "[node][rules][closed]") {
  const Json without{{"recovery_action", nullptr}};
  const auto findings = findings_of({without});
  CHECK(count(findings, unknown) == 1);
  CHECK(verdict_of_job(findings, false).outcome == Outcome::pass);
  CHECK_THAT(verdict_of_job(findings, false).cause, ContainsSubstring("unknown: 1"));
  CHECK(verdict_of_job(findings, true).outcome == Outcome::inconclusive);
  CHECK(record_of(look_at("recovery-action", without)).at("verdict") == "UNKNOWN");
  // gpu-burn#123: where nothing could be read the job has not passed.
  CHECK(verdict_of_job({}, false).outcome == Outcome::inconclusive);
  const std::vector<Finding> only_unknown{
      finding_of("gpu-count", not_known("no driver"), Scope::node, "n0")};
  CHECK(verdict_of_job(only_unknown, false).outcome == Outcome::inconclusive);
}

}  // namespace shakedown::node
