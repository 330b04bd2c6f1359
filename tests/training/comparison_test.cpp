// What bin/compare runs, and what it concludes.
#include "training/programs/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "common/options.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/options.hpp"
#include "tests/support/transcript.hpp"
#include "training/exchange/strategy.hpp"
#include "training/programs/compare_options.hpp"

namespace shakedown::training {
namespace {

using test::Words;
using Names = Texts;

Result measured(const std::string& strategy, int ranks) {
  Result result;
  result.configuration.options.strategy.strategy = strategy;
  result.configuration.ranks = ranks;
  result.rounds.emplace_back();
  return result;
}

/// Of ddp on two ranks, or of none on one.
Result result_of(const std::string& what) {
  Result result = what.starts_with("none") ? measured("none", 1) : measured("ddp", 2);
  if (what == "skipped") {
    result.rounds.clear();
    result.skipped = "does not fit";
  }
  if (what == "failed otherwise") result.failure = "the loss is not finite";
  if (what == "skipped" || what.ends_with("not certified") || what == "failed otherwise")
    return result;
  Certificate& certificate = result.certificate.emplace();
  if (what == "of unknown outcome") return result;
  certificate.reference = "all-reduce";
  certificate.difference.tensor = "fc.weight";
  certificate.outcome = what.ends_with("passed")  ? Outcome::pass
                        : what == "did not train" ? Outcome::inconclusive
                                                  : Outcome::fail;
  certificate.census = {.ranks = 2, .pass = certificate.outcome == Outcome::pass};
  if (what.ends_with("waived")) certificate.waived = "ranks train independently";
  if (what == "did not train")
    certificate.cause = "all-reduce, the reference: its weights did not move";
  if (what == "has another batch") certificate.cause = "rank 1 has another batch";
  if (what == "diverged" || what == "has another batch")
    certificate.census.pass = what == "diverged";
  if (what == "diverged") certificate.cause = "all-reduce, the reference, diverged";
  if (what == "failed though it passed") result.failure = "the loss is not finite";
  return result;
}

/// `ranks` ranks at these images/s, a round each; a step takes what the batch of 100 per rank
/// takes.
Result timed(const std::string& strategy, int ranks, const std::vector<double>& rates) {
  Result result = measured(strategy, ranks);
  result.rounds.clear();
  for (double rate : rates) {
    Round& round = result.rounds.emplace_back();
    round.throughput.images_per_s = rate;
    round.throughput.step_ms_p50 = 1e5 * ranks / rate;
    round.throughput.peak_memory_bytes = {1 << 20, 3 << 20};
    round.efficiency_vs_none = rate / 1000;
    round.breakdown.step_ms = 100;
    round.breakdown.compute_ms = 70;
    round.breakdown.exposed_comm_ms = 20;
    round.breakdown.optimizer_ms = 9.5;
    round.breakdown.hidden_comm_ms = 5;
  }
  result.certificate.emplace();
  result.certificate->reference = "all-reduce";
  result.certificate->outcome = Outcome::pass;
  result.identity.strategy = strategy;
  result.identity.world_size = ranks;
  return result;
}

CompareOptions parse(const Words& words) {
  const test::ParsedAs<CompareOptions> p(words, "compare");
  if (p.ending) throw UsageError(p.ending->text);
  return p.values;
}

/// "strategy/ranks", then "/cap" where there are buckets, and "/setting".
std::vector<std::string> names_of(const Bench& bench) {
  std::vector<std::string> names;
  for (const Configuration& c : bench)
    names.push_back(fmt::format(
        "{}/{}{}{}{}", c.strategy(), c.ranks,
        c.strategy() == "ddp" ? fmt::format("/{}", c.options.strategy.bucket_cap_mb) : "",
        c.setting.empty() ? "" : "/", c.setting));
  return names;
}

const JobRanks kFour{BackendKind::gpu, 4, 4, ""};
const JobRanks kTwoCpus{BackendKind::cpu, 2, 0, "needs GPUs"};

std::string left_out(const CompareOptions& options, const JobRanks& ranks,
                     const std::vector<Bench>& benches) {
  Record nowhere("");
  return record_left_out(options, ranks, benches, nowhere);
}

}  // namespace

TEST_CASE("what a job's configurations come to", "[compare]") {
  test::check_transcript("tests/training/comparison.txt", [](const std::string& given) {
    std::istringstream lines(given);
    std::string line;
    std::getline(lines, line);
    const Texts requested = Words(line);
    std::vector<Result> results;
    std::string text;
    while (std::getline(lines >> std::ws, line)) {
      results.push_back(result_of(line));
      text += line_of(verdict_of(results.back())) + "\n";
    }
    text += fmt::format("exit code {}\n", static_cast<int>(exit_code_of(results, requested)));
    for (const std::string& below : lines_of_verdicts(results)) text += below + "\n";
    return text;
  });
}

TEST_CASE("a certificate's record has null where nothing was compared", "[records]") {
  test::check_transcript("tests/training/certificates.txt", [](const std::string& given) {
    const Certificate certificate = result_of(given).certificate.value();
    // in one line, also where mpirun's ranks have a terminal of its own
    static const std::regex kWrapped("\n +");
    return record_of(certificate).dump() + "\n" +
           std::regex_replace(summary_of(certificate), kWrapped, " ");
  });
}

TEST_CASE("the table has a row per configuration, the fastest first, in 110 columns", "[compare]") {
  Result setting = timed("ddp", 2, {700, 700, 700});
  setting.configuration.setting = "broadcast-buffers";
  const std::string text = table_of({timed("none", 1, {500, 510, 505}),
                                     timed("parameter-server-sharded", 2, {880.4, 900, 910}),
                                     setting, result_of("skipped")});
  std::istringstream lines(text);
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 110);
    rows.push_back(line);
  }
  REQUIRE(rows.size() == 7);  // blank, title, two of heading; what was skipped is not here
  CHECK_THAT(rows[1], ContainsSubstring("median of 3 rounds (lowest-highest)"));
  CHECK_THAT(rows[4], ContainsSubstring("parameter-server-sharded     2  900.0 (880.4-910.0)"));
  CHECK_THAT(rows[4], ContainsSubstring("222.2    90.0    20.00    5.00     3 MiB   PASS"));
  CHECK_THAT(rows[5], ContainsSubstring("ddp, broadcast-buffers       2                700.0 "));
  CHECK_THAT(rows[6], ContainsSubstring("none (single)                1  505.0 (500.0-510.0)"));
  CHECK_THAT(table_of({timed("ddp", 2, {92.514})}), ContainsSubstring(" 92.51 "));
}

TEST_CASE("the title has an interval where there are steps enough", "[compare]") {
  std::vector<Result> one{timed("ddp", 2, {900})};
  CHECK_THAT(table_of(one), ContainsSubstring("one round (too few steps for an interval)"));
  one.front().rounds.front().throughput.interval = {890, 910};
  CHECK_THAT(table_of(one), ContainsSubstring("one round (95 % interval of its steps)"));
}

TEST_CASE("the account is that of a round in which nothing was disturbed", "[compare]") {
  Result zero1 = timed("zero1", 2, {900, 900, 900});
  const double steps[] = {8.74, 8.73, 8.75};
  const double nones[] = {13.26, 8.20, 8.18};  // something else ran in the first round
  for (std::size_t r = 0; r < 3; ++r) {
    zero1.rounds[r].breakdown.step_ms = steps[r];
    zero1.rounds[r].breakdown.none_step_ms = nones[r];
  }
  CHECK(account_of(zero1).step_ms == 8.73);
  zero1.rounds.resize(2);
  CHECK(account_of(zero1).step_ms == 8.73);  // two are as near: the shorter one
}

TEST_CASE("what is compared, and what is left out", "[compare]") {
  test::check_transcript("tests/training/benches.txt", [](const std::string& given) {
    std::istringstream words(given);
    JobRanks job{BackendKind::gpu, 0, 0, ""};
    std::string kind, no_peers;
    words >> kind >> job.count >> job.peers >> no_peers >> std::ws;
    if (kind == "cpu") job.backend = BackendKind::cpu;
    if (no_peers != "-") job.no_peers = "needs GPUs of one node";
    std::string line, found;
    std::getline(words, line);
    try {
      const CompareOptions options = parse(line);
      const auto benches = benches_of(options, job);
      for (const Bench& bench : benches) {
        const StepOptions& o = bench.front().options;
        found += fmt::format("{} {}, batch {}:", o.model.model, o.model.precision, o.batch_size);
        for (const std::string& name : names_of(bench)) found += " " + name;
        found += "\n";
      }
      return found + left_out(options, job, benches);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  });
}

TEST_CASE("peer is compared on the ranks that can be peers", "[compare]") {
  const CompareOptions options = parse("--strategies peer,ddp --ranks 2,4");
  Backend backend;
  const auto no_peers = [&](const CompareOptions& o) {
    return ranks_of(o, backend, test::session()).no_peers;
  };
  CHECK(no_peers(parse({})) == "needs GPUs");
  CHECK(no_peers(options).empty());  // as it is named
  CHECK(ranks_of(options, backend, test::session()).peers == test::session().world_size());
  backend.kind = BackendKind::gpu;
  const test::Variable disabled("NCCL_P2P_DISABLE", "1");
  CHECK(no_peers(parse({})) == "NCCL_P2P_DISABLE=1");
}

TEST_CASE("a setting differs from plain ddp in its one switch", "[compare]") {
  const Bench bench =
      benches_of(parse("--strategies ddp --settings all"), {BackendKind::gpu, 2, 2, ""})[0];
  const auto with = [&](const std::string& setting) -> const StepOptions& {
    return std::find_if(bench.begin(), bench.end(),
                        [&](const auto& c) { return c.setting == setting; })
        ->options;
  };
  CHECK(with("fp32").model.precision == "fp32");
  CHECK_FALSE(with("autotune-off").model.autotune);
  CHECK(with("autotune-off").model.precision == "tf32");
  CHECK(with("broadcast-buffers").strategy.norm_stats == "broadcast");
  CHECK_FALSE(with("broadcast-buffers").strategy.no_overlap);
  CHECK(with("no-overlap").strategy.no_overlap);
  CHECK(with("no-graph").graph == "off");
}

TEST_CASE("each round has every configuration, and begins elsewhere", "[compare]") {
  constexpr std::size_t kCount = 7;
  std::set<std::size_t> starts;
  for (int round = 0; round < 3; ++round) {
    const auto order = turns(kCount, round, 3);
    CHECK(std::set<std::size_t>(order.begin(), order.end()).size() == kCount);
    CHECK(order.size() == kCount);
    starts.insert(order.front());
  }
  CHECK(starts.size() == 3);
  CHECK(turns(2, 1, 4) == std::vector<std::size_t>{0, 1});
}

}  // namespace shakedown::training
