#include "training/programs/comparison.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/catch.hpp"
#include "training/programs/comparison_table.hpp"

namespace shakedown::training {
namespace {

Result measured(const std::string& strategy, int ranks) {
  Result result;
  result.configuration.options.strategy.strategy = strategy;
  result.configuration.ranks = ranks;
  result.rounds.emplace_back();
  return result;
}

Result certified(bool pass) {
  Result result = measured("ddp", 2);
  result.certificate.emplace();
  result.certificate->reference = "all-reduce";
  result.certificate->difference.tensor = "fc.weight";
  result.certificate->outcome = pass ? Outcome::pass : Outcome::fail;
  result.certificate->census = {.ranks = 2, .pass = pass};
  return result;
}

Result waived() {
  Result result = certified(false);
  result.certificate->waived = "ranks train independently";
  return result;
}

Result unclear() {
  Result result = certified(false);
  result.certificate->outcome = Outcome::inconclusive;
  result.certificate->cause = "all-reduce, the reference: its weights did not move";
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

Result skipped() {
  Result result;
  result.skipped = "does not fit";
  return result;
}

}  // namespace

TEST_CASE("a certificate decides a configuration's verdict", "[compare]") {
  CHECK(verdict_of(certified(true)).outcome == Outcome::pass);
  CHECK(verdict_of(certified(false)).outcome == Outcome::fail);
  CHECK_THAT(verdict_of(certified(false)).cause, ContainsSubstring("fc.weight"));
  CHECK_THAT(verdict_of(certified(true)).cause, ContainsSubstring("each rank's gradients (2)"));
  // its reference did not train: that is no proof, while one rank or no exchange needs none
  CHECK(verdict_of(unclear()).outcome == Outcome::inconclusive);
  CHECK(verdict_of(waived()).outcome == Outcome::pass);
  Result unknown = measured("ddp", 2);
  unknown.certificate.emplace();
  CHECK(verdict_of(unknown).outcome == Outcome::inconclusive);
  CHECK(verdict_of(measured("ddp", 2)).outcome == Outcome::inconclusive);  // --certificate off
  Result diverged = certified(false);
  diverged.certificate->cause = "all-reduce, the reference, diverged";
  CHECK(verdict_of(diverged).outcome == Outcome::fail);
  CHECK_THAT(verdict_of(diverged).cause, ContainsSubstring("diverged"));
}

TEST_CASE("what went wrong otherwise fails a certified configuration too", "[compare]") {
  Result result = certified(true);
  result.failure = "the loss is not finite";
  CHECK(verdict_of(result).outcome == Outcome::fail);
  CHECK(verdict_of(result).cause == result.failure);
}

TEST_CASE("one failure fails the job, what was skipped leaves it inconclusive", "[compare]") {
  const std::vector<std::string> ddp{"ddp"};
  CHECK(exit_code_of({certified(true), certified(true)}, ddp) == ExitCode::pass);
  CHECK(exit_code_of({certified(true), certified(false), skipped()}, ddp) == ExitCode::fail);
  CHECK(exit_code_of({certified(true), skipped()}, ddp) == ExitCode::inconclusive);
  CHECK(exit_code_of({skipped(), skipped()}, ddp) == ExitCode::usage);
  const Result none = measured("none", 1);  // is there, requested or not
  CHECK(exit_code_of({none, skipped()}, ddp) == ExitCode::usage);
  CHECK(exit_code_of({none, skipped()}, {"none", "ddp"}) == ExitCode::inconclusive);
  CHECK(exit_code_of({certified(true), unclear()}, ddp) == ExitCode::inconclusive);
  CHECK(exit_code_of({certified(true), measured("ddp", 2)}, ddp) == ExitCode::pass);
  CHECK(verdict_of(skipped()).outcome == Outcome::inconclusive);
}

TEST_CASE("the table has a row per configuration, the fastest first, in 110 columns", "[compare]") {
  Result setting = timed("ddp", 2, {700, 700, 700});
  setting.configuration.setting = "broadcast-buffers";
  const std::string text =
      table_of({timed("none", 1, {500, 510, 505}),
                timed("parameter-server-sharded", 2, {880.4, 900, 910}), setting, skipped()});
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

TEST_CASE("what failed, was not certified or was skipped is named with its cause", "[compare]") {
  const auto failures = [](const std::vector<Result>& results) {
    return lines_of_verdicts(results);
  };
  CHECK(failures({timed("ddp", 2, {900}), unclear()}) ==
        std::vector<std::string>{"INCONCLUSIVE strategy ddp, 25 MiB on 2 ranks: all-reduce, the "
                                 "reference: its weights did not move"});
  CHECK(failures({timed("ddp", 2, {900}), waived()}).front() ==
        "No configuration failed. Certificates: 1 passed, 1 waived.");
  CHECK(failures({certified(false)}).front() ==
        "FAIL strategy ddp, 25 MiB on 2 ranks: other weights than by all-reduce: fc.weight");
  CHECK(failures({measured("ddp", 2), measured("none", 2)}).front() ==
        "INCONCLUSIVE: 2 configurations without a certificate");
  Result lost = measured("ddp", 2);
  lost.failure = "the loss is not finite";
  CHECK(failures({lost}).front() == "FAIL strategy ddp, 25 MiB on 2 ranks: the loss is not finite");
  CHECK(failures({skipped(), skipped()}).front() ==
        "INCONCLUSIVE, skipped: does not fit (ddp, 25 MiB on 1 rank; ddp, 25 MiB on 1 rank)");
}

}  // namespace shakedown::training
