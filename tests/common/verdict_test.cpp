#include "common/record.hpp"

#include <nlohmann/json.hpp>
#include <vector>

#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("a verdict's record and line name class and action where they are known", "[verdict]") {
  Verdict verdict{Scope::link, "2->5", Outcome::fail, "12 GB/s"};
  CHECK(record_of(verdict) ==
        Json{{"scope", "link"}, {"name", "2->5"}, {"verdict", "FAIL"}, {"cause", "12 GB/s"}});
  CHECK(line_of(verdict) == "FAIL link 2->5: 12 GB/s");
  verdict.class_ = Class::hardware;
  verdict.action = "reseat the cable";
  CHECK(record_of(verdict).at("class") == "HARDWARE");
  CHECK(record_of(verdict).at("action") == "reseat the cable");
  CHECK(line_of(verdict) == "FAIL link 2->5: 12 GB/s; reseat the cable");
  verdict.outcome = Outcome::pass;  // a remark: nothing has to be done
  CHECK(line_of(verdict) == "PASS link 2->5: 12 GB/s");
}

TEST_CASE("the worst verdict is the exit code: fail, then inconclusive, then pass", "[verdict]") {
  const auto worst_of = [](const std::vector<Outcome>& outcomes) {
    std::vector<Verdict> verdicts;
    for (Outcome outcome : outcomes) verdicts.push_back({Scope::job, "", outcome, ""});
    return worst(verdicts);
  };
  using enum Outcome;
  CHECK(worst_of({}) == ExitCode::pass);
  CHECK(worst_of({pass, pass}) == ExitCode::pass);
  CHECK(worst_of({pass, inconclusive, pass}) == ExitCode::inconclusive);
  CHECK(worst_of({inconclusive, fail, pass}) == ExitCode::fail);
}

}  // namespace shakedown
