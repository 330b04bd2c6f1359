// --reference: what is compared, and that noise does not fail where a slowdown does.
#include "collectives/perf/reference.hpp"

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "collectives/perf/perf_options.hpp"
#include "common/random.hpp"
#include "tests/catch.hpp"

namespace shakedown::collectives {
namespace {

Json row(std::vector<double> samples_us, int bytes = 1024) {
  return {{"kind", "collective"},
          {"backend", "gpu"},
          {"device", "NVIDIA H200"},
          {"transport", "nccl"},
          {"world_size", 8},
          {"nodes", 2},
          {"ranks_per_node", {4, 4}},
          {"launch_mode", "back_to_back"},
          {"registration", 0},
          {"aggregate", 1},
          {"blocking", 0},
          {"average", 1},
          {"ctas", 0},
          {"iterations_per_sample", 20},
          {"operation", "all_reduce"},
          {"dtype", "float32"},
          {"reduction", "sum"},
          {"root", -1},
          {"bytes", bytes},
          {"in_place", false},
          {"time_us_p50", samples_us[samples_us.size() / 2]},
          {"wrong_elements", 0},
          {"samples_us", samples_us}};
}

Verdict judged(const Json& reference, const Json& here) {
  Reference r("ref.jsonl", reference.dump() + "\n", 5);
  r.add(here, Trial());
  for (int again = 0; again < kMeasuredAgain; ++again)
    for (ComparedRow* slower : r.slower_rows())
      slower->measured_us.push_back(here.at("samples_us").get<std::vector<double>>());
  const auto verdicts = r.judge_rows("collective_perf");
  REQUIRE(verdicts.size() == 1);
  return verdicts.front();
}

/// Times of one row as machines give them: a normal part, now and then a much longer sample.
double noisy(Random& random, double time_us) {
  const double normal =
      std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(2 * M_PI * random.uniform());
  const double tail = random.uniform() < 0.05 ? -std::log(1 - random.uniform()) : 0;
  return time_us * (1 + 0.03 * normal + tail);
}

/// 288 rows of five samples each; `slowdown(row)` times as slow. For the length of some rows in a
/// run the machine has something else to do.
struct Machine {
  std::vector<double> sample(std::size_t row) {
    if (busy_ == 0 && random.below(300) == 0) busy_ = 1 + static_cast<int>(random.below(40));
    const double factor = busy_ > 0 ? 1.3 : 1;
    if (busy_ > 0) --busy_;
    std::vector<double> samples;
    for (int i = 0; i < 5; ++i)
      samples.push_back(factor * noisy(random, (5 + static_cast<double>(row)) * slowdown(row)));
    return samples;
  }

  Random random{20261122};
  std::function<double(std::size_t)> slowdown = [](std::size_t) { return 1.0; };
  int busy_ = 0;
};

constexpr std::size_t kRows = 288;

std::string record_of_run(Machine& machine) {
  std::string text;
  for (std::size_t i = 0; i < kRows; ++i)
    text += row(machine.sample(i), static_cast<int>(i)).dump() + "\n";
  return text;
}

/// How many rows of one run fail by the reference.
long failures(Machine& machine, const std::string& text) {
  Reference reference("ref.jsonl", text, BarOptions().tolerance_percent);
  for (std::size_t i = 0; i < kRows; ++i) {
    Trial trial;
    trial.requested_bytes = i;
    reference.add(row(machine.sample(i), static_cast<int>(i)), trial);
  }
  for (int again = 0; again < kMeasuredAgain; ++again)
    for (ComparedRow* slower : reference.slower_rows())
      slower->measured_us.push_back(machine.sample(slower->trial.requested_bytes));
  long failed = 0;
  for (const Verdict& verdict : reference.judge_rows("collective_perf"))
    failed += verdict.outcome != Outcome::pass ? 1 : 0;
  return failed;
}

}  // namespace

TEST_CASE("a machine passes by its own reference, 20 times of 20, three runs each", "[reference]") {
  Machine machine;
  for (int time = 0; time < 20; ++time) {
    const std::string reference = record_of_run(machine);
    for (int run = 0; run < 3; ++run) CHECK(failures(machine, reference) == 0);
  }
}

TEST_CASE("an operation that has become 15 % slower is found every time", "[reference]") {
  Machine machine;
  for (int time = 0; time < 20; ++time) {
    machine.slowdown = [](std::size_t) { return 1.0; };
    const std::string reference = record_of_run(machine);
    machine.slowdown = [](std::size_t i) { return i < 32 ? 1.15 : 1.0; };
    const long found = failures(machine, reference);
    CHECK(found >= 10);
    CHECK(found <= 32);
  }
}

TEST_CASE("a row fails beyond the tolerance and outside the reference's samples", "[reference]") {
  const Json reference = row({98, 99, 100, 101, 102});
  CHECK(judged(reference, row({101, 103, 104, 104.5, 104.9})).outcome == Outcome::pass);
  CHECK(judged(reference, row({106, 107, 108, 109, 110})).outcome == Outcome::fail);
  const Verdict overlapping = judged(reference, row({101, 107, 108, 109, 110}));
  CHECK(overlapping.outcome == Outcome::pass);
  CHECK_THAT(overlapping.cause, ContainsSubstring("slower, but the samples overlap"));
  CHECK(judged(reference, row({1, 1, 1, 1, 1})).outcome == Outcome::pass);
}

TEST_CASE("from six samples on one odd sample does not hide a slowdown", "[reference]") {
  std::vector<double> before(9, 100);
  before[4] = 500;
  CHECK(judged(row(before), row(std::vector<double>(9, 110))).outcome == Outcome::fail);
}

TEST_CASE("a reference of one sample cannot tell a slower row from chance", "[reference]") {
  const Verdict verdict = judged(row({100}), row({150}));
  CHECK(verdict.outcome == Outcome::inconclusive);
  CHECK_THAT(verdict.cause, ContainsSubstring("1 samples of the reference are too few"));
  CHECK(judged(row({100}), row({104})).outcome == Outcome::pass);
}

TEST_CASE("what differs from the reference is inconclusive and named", "[reference]") {
  const Json here = row({100, 101, 102, 103, 104});
  for (const char* key :
       {"backend", "device", "transport", "world_size", "nodes", "ranks_per_node", "launch_mode",
        "registration", "aggregate", "blocking", "average", "ctas", "iterations_per_sample"}) {
    CAPTURE(key);
    Json other = here;
    other[key] = 77;
    Verdict verdict = judged(other, here);
    CHECK(verdict.outcome == Outcome::inconclusive);
    CHECK_THAT(verdict.cause, ContainsSubstring(std::string(key) + " is 77 there"));
    other.erase(key);
    verdict = judged(other, here);
    CHECK(verdict.outcome == Outcome::inconclusive);
    CHECK_THAT(verdict.cause, ContainsSubstring(std::string("its ") + key + " is not recorded"));
  }
  for (const char* key : {"bytes", "root", "in_place", "operation", "dtype", "reduction"}) {
    CAPTURE(key);
    Json other = here;
    other[key] = 77;
    const Verdict verdict = judged(other, here);
    CHECK(verdict.outcome == Outcome::inconclusive);
    CHECK_THAT(verdict.cause,
               ContainsSubstring("1 of 1 rows not comparable: no such row (first: all_reduce"));
  }
}

TEST_CASE("of an appended reference the last run counts, and no wrong one", "[reference]") {
  Json wrong = row({1, 1, 1, 1, 1});
  wrong["wrong_elements"] = 4;
  Reference reference("ref.jsonl",
                      row({10, 10, 10, 10, 10}).dump() + "\n" +
                          row({100, 100, 100, 100, 100}).dump() + "\n" + wrong.dump() + "\n",
                      5);
  reference.add(row({104, 104, 104, 104, 104}), Trial());
  CHECK(reference.slower_rows().empty());
}

TEST_CASE("a reference that cannot be read says so", "[reference]") {
  const auto read = [](const std::string& text) { Reference("ref.jsonl", text, 5); };
  const std::string good = row({40, 41, 42, 43, 44}).dump() + "\n";
  CHECK_THROWS_WITH(read("not JSON\n"), ContainsSubstring("ref.jsonl: line 1 is not JSON"));
  for (const char* line : {"[1,2]", "{\"kind\":5}", "{}", "7"}) {
    CHECK_THROWS_AS(read(good + line + "\n"), UsageError);
    CHECK_THROWS_WITH(read(good + line + "\n"), ContainsSubstring("line 2 is not a record"));
  }
  CHECK_NOTHROW(read("{\"ki\n{\"kind\":\"run\"}\n" + good));  // a run that crashed while it wrote
  CHECK_THROWS_WITH(read(good + "{\"ki\n" + good), ContainsSubstring("line 2 is not JSON"));
  CHECK_THROWS_WITH(read("{\"kind\": \"step\"}\n"), ContainsSubstring("no collective records"));
}

}  // namespace shakedown::collectives
