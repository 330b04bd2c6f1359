#include "training/programs/comparison.hpp"

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

Result measured(const std::string& strategy, int ranks) {
  Result result;
  result.configuration.options.strategy.strategy = strategy;
  result.configuration.ranks = ranks;
  result.steps.push_back({{"images_per_s", 1.0}});
  return result;
}

Result certified(const Json& pass) {
  Result result = measured("ddp", 2);
  result.certificate = {{"reference", "all-reduce"}, {"tensor", "fc.weight"}, {"pass", pass}};
  if (pass.is_null()) result.certificate["waived"] = "all-reduce, the reference, did not move";
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
  // its reference did not train: that is no proof, while one rank or no exchange needs none
  CHECK(verdict_of(certified(nullptr)).outcome == Outcome::inconclusive);
  Result alone = certified(nullptr);
  alone.configuration.ranks = 1;
  CHECK(verdict_of(alone).outcome == Outcome::pass);
  Result none = certified(nullptr);
  none.certificate["reference"] = "";
  CHECK(verdict_of(none).outcome == Outcome::pass);
  CHECK(verdict_of(measured("ddp", 2)).outcome == Outcome::inconclusive);  // --certificate off
  Result diverged = certified(false);
  diverged.certificate["cause"] = "all-reduce, the reference, diverged";
  CHECK(verdict_of(diverged).outcome == Outcome::fail);
  CHECK_THAT(verdict_of(diverged).cause, ContainsSubstring("diverged"));
}

TEST_CASE("what went wrong otherwise fails a certified configuration too", "[compare]") {
  Result result = certified(true);
  result.failure = "the loss is not finite";
  CHECK(verdict_of(result).outcome == Outcome::fail);
  CHECK(verdict_of(result).cause == result.failure);
}

TEST_CASE("one failure fails the job, what was skipped does not", "[compare]") {
  const std::vector<std::string> ddp{"ddp"};
  CHECK(exit_code_of({certified(true), certified(true)}, ddp) == ExitCode::pass);
  CHECK(exit_code_of({certified(true), certified(false), skipped()}, ddp) == ExitCode::fail);
  CHECK(exit_code_of({certified(true), skipped()}, ddp) == ExitCode::pass);
  CHECK(exit_code_of({skipped(), skipped()}, ddp) == ExitCode::usage);
  const Result none = measured("none", 1);  // is there, asked for or not
  CHECK(exit_code_of({none, skipped()}, ddp) == ExitCode::usage);
  CHECK(exit_code_of({none, skipped()}, {"none", "ddp"}) == ExitCode::pass);
  CHECK(verdict_of(skipped()).outcome == Outcome::inconclusive);
}

}  // namespace shakedown::training
