#include "training/predict/what_if.hpp"

#include <limits>
#include <utility>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "training/exchange/strategy.hpp"
#include "training/predict/advice.hpp"

namespace shakedown::training {
namespace {

/// Three gradients of 4 MB, each a block and, with the scenario's caps, a bucket of its own.
MeasuredStep measured_step() {
  MeasuredStep step;
  step.compute = {{128, 50}, {64, 30}};  // 10 ms + 0.3125 ms per image
  step.gradients = {{4e6, 5, 2}, {4e6, 10, 1}, {4e6, 20, 0}};
  step.backward_ms = 20;
  step.ready_batch_size = 64;
  step.optimizer_ms = 2;
  step.interference = 0.1;
  step.input_bytes_per_image = 1e5;
  return step;
}

/// All-reduce of a gradient: 1.5 * 4 MB / 1 GB/s = 6 ms; scatter or gather of one: 3 ms. Sends and
/// receives take 1 ms a message more.
Scenario four_ranks() {
  Scenario scenario;
  scenario.world_size = 4;
  scenario.batch_size = 64;
  scenario.ring = {0, 1e9};
  scenario.star = {1e-3, 1e9};
  scenario.bucket_cap_mb = 1;
  return scenario;
}

Prediction predict(const std::string& strategy, const Scenario& scenario) {
  return StepModel(measured_step()).predict(strategy, scenario);
}

double step_ms(const std::string& strategy, const Scenario& scenario = four_ranks()) {
  return predict(strategy, scenario).step_ms;
}

}  // namespace

TEST_CASE("compute between and beyond the measured batches", "[what_if]") {
  const ComputeTime time({{128, 50}, {64, 30}});
  CHECK(time.at(64).ms == 30);
  CHECK(time.at(96).ms == Approx(40));
  CHECK_FALSE(time.at(96).extrapolated);
  CHECK_FALSE(time.at(128).extrapolated);
  CHECK(time.at(256).ms == Approx(90));
  CHECK(time.at(256).extrapolated);
  CHECK(time.at(32).ms == Approx(20));
  CHECK(time.at(32).extrapolated);

  const ComputeTime one({{64, 30}});
  CHECK(one.at(128).ms == Approx(60));
  CHECK(one.at(128).extrapolated);

  // Three that lie on no line: exact at each, and beyond them as between the nearest two.
  const ComputeTime bent({{16, 12}, {32, 14}, {64, 30}});
  CHECK(bent.at(32).ms == 14);
  CHECK(bent.at(48).ms == Approx(22));
  CHECK(bent.at(65).ms == Approx(30.5));
  CHECK(bent.at(8).ms == Approx(11));

  // A line that ends below 0: in proportion from the nearest.
  const ComputeTime steep({{16, 2}, {32, 30}});
  CHECK(steep.at(8).ms == Approx(1));
  CHECK(steep.at(8).extrapolated);

  CHECK_THROWS_AS(ComputeTime({}), InternalError);
  CHECK_THROWS_AS(ComputeTime({{64, 30}, {64, 31}}), InternalError);
  CHECK_THROWS_AS(time.at(0), InternalError);
}

TEST_CASE("ddp by hand", "[what_if]") {
  // 5..11, 11..17, 20..26 while backward ends at 20
  const Prediction p = predict("ddp", four_ranks());
  CHECK(p.ranks_computing == 4);
  CHECK(p.compute_ms == 30);
  CHECK(p.exposed_ms == Approx(6));
  CHECK(p.hidden_ms == Approx(12));
  CHECK(p.interference_ms == Approx(1.2));
  CHECK(p.optimizer_ms == 2);
  CHECK(p.step_ms == Approx(39.2));
  CHECK(p.images_per_s == Approx(4 * 64 / 39.2e-3));
  CHECK(p.efficiency == Approx(32 / 39.2));
  CHECK_FALSE(p.extrapolated);

  Scenario scenario = four_ranks();
  scenario.bucket_cap_mb = 25;  // one bucket for the first gradient, one for the others: 20..32
  CHECK(predict("ddp", scenario).exposed_ms == Approx(12));

  scenario = four_ranks();
  scenario.batch_size = 256;  // compute 90 ms; ready at 15, 30, 60
  CHECK(predict("ddp", scenario).exposed_ms == Approx(6));
  CHECK(predict("ddp", scenario).compute_ms == Approx(90));
  CHECK(predict("ddp", scenario).extrapolated);

  scenario = four_ranks();
  scenario.gradient_bytes_factor = 0.5;  // 3 ms each
  CHECK(predict("ddp", scenario).exposed_ms == Approx(3));
  CHECK(predict("ddp", scenario).step_ms == Approx(30 + 3 + 0.6 + 2));

  scenario = four_ranks();
  scenario.accumulate = 3;  // only the last micro-batch's are exchanged
  CHECK(predict("ddp", scenario).step_ms == Approx(90 + 6 + 1.2 + 2));
  CHECK(predict("ddp", scenario).efficiency == Approx(92 / 99.2));
}

TEST_CASE("the other strategies by hand", "[what_if]") {
  CHECK(step_ms("none") == Approx(32));
  CHECK(predict("none", four_ranks()).efficiency == Approx(1));
  CHECK(step_ms("all-reduce") == Approx(32 + 18));
  // a pass of 12 MB: 3 * (1 + 12) ms
  CHECK(step_ms("parameter-server") == Approx(32 + 2 * 39));
  // 3 messages and 12 MB * 3/4 / 1 GB/s to the shards and again back; a quarter of the update
  CHECK(step_ms("parameter-server-sharded") == Approx(30 + 12 + 12 + 0.5));
  // scatters at 5..8, 10..13, 20..23; then 9 ms of gathering
  CHECK(step_ms("zero1") == Approx(30 + 3 + 0.6 + 9 + 0.5));
  CHECK(step_ms("zero2") == Approx(30 + 3 + 0.6 + 9 + 0.5));
  // inputs 3 * (1 + 6.4) ms, gradients a pass, weights along a chain of 3 messages
  CHECK(step_ms("data-parallel") == Approx(32 + 22.2 + 39 + 15));
  // Blocks take 5, 5, 10 ms in backward, half in forward; every gather and scatter 3 ms.
  // Forward: gathers 0..3, 3..6, 8..11; blocks 3..8, 8..10.5, 11..13.5. Exposed 3.5.
  // Backward: gathers 0..3, 3..6, 11..14; blocks 3..8, 8..13, 14..24; scatters 8..11, 14..17,
  // 24..27. Exposed 7; hidden 27 - 10.5.
  CHECK(predict("fsdp", four_ranks()).exposed_ms == Approx(10.5));
  CHECK(step_ms("fsdp") == Approx(30 + 10.5 + 1.65 + 0.5));
}

TEST_CASE("what strategies make of accumulation and smaller weights", "[what_if]") {
  Scenario scenario = four_ranks();
  scenario.accumulate = 2;
  CHECK(step_ms("all-reduce", scenario) == Approx(62 + 18));
  CHECK(step_ms("zero1", scenario) == Approx(60 + 3.6 + 9 + 0.5));
  CHECK(step_ms("zero2", scenario) == Approx(60 + 2 * 3.6 + 9 + 0.5));
  CHECK(step_ms("fsdp", scenario) == Approx(60 + 2 * 12.15 + 0.5));
  CHECK(step_ms("data-parallel", scenario) == Approx(62 + 2 * 22.2 + 39 + 15));

  scenario = four_ranks();
  scenario.weight_bytes_factor = 0.5;
  CHECK(step_ms("zero1", scenario) == Approx(30 + 3.6 + 4.5 + 0.5));
  CHECK(step_ms("parameter-server", scenario) == Approx(32 + 39 + 21));
}

TEST_CASE("servers average what they receive", "[what_if]") {
  MeasuredStep step = measured_step();
  step.average_ms_per_byte = 1e-6;  // 12 ms for one rank's gradients
  const auto more_ms = [&](const std::string& strategy, const Scenario& scenario) {
    return StepModel(step).predict(strategy, scenario).exposed_ms -
           predict(strategy, scenario).exposed_ms;
  };
  Scenario scenario = four_ranks();
  CHECK(more_ms("parameter-server", scenario) == Approx(3 * 12));
  CHECK(more_ms("data-parallel", scenario) == Approx(4 * 12));
  CHECK(more_ms("parameter-server-sharded", scenario) == Approx(4 * 12 / 4));
  for (const char* by_collectives : {"none", "all-reduce", "ddp", "zero1", "zero2", "fsdp"})
    CHECK(more_ms(by_collectives, scenario) == 0);
  scenario.gradient_bytes_factor = 0.5;
  CHECK(more_ms("data-parallel", scenario) == Approx(4 * 6));
  scenario.world_size = 1;
  CHECK(more_ms("data-parallel", scenario) == 0);
}

TEST_CASE("strategies on eight H200", "[what_if]") {
  // ResNet-50, float16, batch 64 (results/0.1/h200/strategies-8gpu.jsonl): none's compute and
  // update, both links' costs. A server averages at 4 TB/s: 2 bytes read, 4 read and 4 written.
  constexpr double kBytes = 25557032 * 4.0;
  MeasuredStep step;
  step.compute = {{64, 7.864}};
  step.gradients = {{kBytes, 5.2, 0}};
  step.backward_ms = 5.2;
  step.ready_batch_size = 64;
  step.optimizer_ms = 0.157;
  step.average_ms_per_byte = 5 / 4e12 * 1e3;
  step.input_bytes_per_image = 224 * 224 * 4 * 2;
  Scenario scenario;
  scenario.world_size = 8;
  scenario.batch_size = 64;
  scenario.ring = {1.88e-6, 335.2e9};
  scenario.star = {2.23e-6, 396.9e9};
  scenario.gradient_bytes_factor = scenario.weight_bytes_factor = 0.5;
  const StepModel model(step);
  for (const auto& [strategy, measured_ms] :
       {std::pair{"all-reduce", 8.265}, std::pair{"parameter-server", 10.367},
        std::pair{"parameter-server-sharded", 8.281}, std::pair{"data-parallel", 10.048}}) {
    CAPTURE(strategy);
    CHECK(model.predict(strategy, scenario).step_ms == Approx(measured_ms).epsilon(0.03));
  }
}

TEST_CASE("without overlap every exchange is exposed", "[what_if]") {
  Scenario scenario = four_ranks();
  scenario.overlap = false;
  CHECK(step_ms("ddp", scenario) == Approx(step_ms("all-reduce")));
  CHECK(step_ms("zero2", scenario) == Approx(30 + 9 + 9 + 0.5));
  CHECK(predict("fsdp", scenario).hidden_ms == 0);
  CHECK(predict("fsdp", scenario).exposed_ms == Approx(27));
}

TEST_CASE("zero2 exchanges by block, whatever the buckets", "[what_if]") {
  Scenario scenario = four_ranks();
  scenario.ring.alpha_s = 1e-3;  // 3 ms a scatter more: 5..11, 11..17, 20..26; 12 ms of gathering
  CHECK(predict("zero2", scenario).exposed_ms == Approx(6 + 12));
  CHECK(predict("zero2", scenario).hidden_ms == Approx(12));
  scenario.bucket_cap_mb = 25;
  CHECK(predict("zero2", scenario).exposed_ms == Approx(6 + 12));
  scenario.overlap = false;  // each block pays the latency
  CHECK(predict("zero2", scenario).exposed_ms == Approx(18 + 12));
}

TEST_CASE("every strategy in the table can be predicted, an asynchronous one aside", "[what_if]") {
  for (const StrategyEntry& entry : strategies()) {
    if (std::string(entry.name) == "parameter-server-async") continue;  // ranks have no common step
    CAPTURE(entry.name);
    CHECK(predict(entry.name, four_ranks()).step_ms > 0);
  }
  CHECK_THROWS_AS(predict("parameter-server-async", four_ranks()), InternalError);
  CHECK_THROWS_AS(predict("sneakernet", four_ranks()), UsageError);
}

TEST_CASE("without communication every strategy computes alone", "[what_if]") {
  Scenario single = four_ranks();
  single.world_size = 1;
  Scenario ideal = four_ranks();
  ideal.ring = ideal.star = {0, std::numeric_limits<double>::infinity()};
  for (const std::string& strategy : predicted_strategies()) {
    CAPTURE(strategy);
    const Prediction p = predict(strategy, ideal);
    CHECK(p.exposed_ms == Approx(0).margin(1e-9));
    CHECK(p.step_ms == Approx(30 + p.optimizer_ms));
    if (strategy == "parameter-server") {
      CHECK_THROWS_AS(predict(strategy, single), InternalError);
      continue;
    }
    CHECK(predict(strategy, single).step_ms == Approx(32));
    CHECK(predict(strategy, single).efficiency == Approx(1));
  }
}

TEST_CASE("more bandwidth, less latency or fewer bytes are never slower", "[what_if]") {
  for (const std::string& strategy : predicted_strategies()) {
    CAPTURE(strategy);
    Scenario scenario = four_ranks();
    double last_ms = std::numeric_limits<double>::infinity();
    for (double bytes_per_s = 1e7; bytes_per_s < 1e13; bytes_per_s *= 1.3) {
      scenario.ring.bytes_per_s = scenario.star.bytes_per_s = bytes_per_s;
      const double ms = step_ms(strategy, scenario);
      CHECK(ms <= last_ms * (1 + 1e-12));
      last_ms = ms;
      Scenario compressed = scenario;
      compressed.gradient_bytes_factor = 0.25;
      CHECK(step_ms(strategy, compressed) <= ms * (1 + 1e-12));
      Scenario late = scenario;
      late.ring.alpha_s += 1e-3;
      CHECK(step_ms(strategy, late) >= ms * (1 - 1e-12));
    }
  }
}

TEST_CASE("the fastest strategy and the second", "[what_if]") {
  const StepModel model(measured_step());
  const std::vector<std::string> strategies{"all-reduce", "ddp", "parameter-server"};
  Scenario scenario = four_ranks();
  const Winner winner = find_winner(model, scenario, strategies);
  CHECK(winner.strategy == "ddp");  // 39.2 ms against 50
  CHECK(winner.second == "all-reduce");
  CHECK(winner.margin == Approx(50 / 39.2 - 1));
  scenario.ring.bytes_per_s = scenario.star.bytes_per_s = 1e15;
  CHECK(find_winner(model, scenario, strategies).margin == Approx(0).margin(1e-4));
  scenario.ring.alpha_s = 1e-3;
  CHECK(find_winner(model, scenario, {"ddp", "none"}).strategy == "none");

  scenario.world_size = 1;
  const Winner alone = find_winner(model, scenario, {"parameter-server", "ddp"});
  CHECK(alone.strategy == "ddp");
  CHECK(alone.second.empty());
  CHECK(alone.margin == 0);
  CHECK_THROWS_AS(find_winner(model, scenario, {"parameter-server"}), InternalError);
}

TEST_CASE("advice is sorted and only what gains", "[what_if]") {
  const StepModel model(measured_step());
  const Scenario base = four_ranks();
  const auto advice = advise(model, "all-reduce", base, usual_changes(model, base, 128));
  const auto gain = [&](const std::string& text) {
    for (const Advice& item : advice) {
      if (item.text == text) return item.gain_percent;
    }
    return -1.0;
  };
  // From 64 images per rank in 50 ms.
  CHECK(gain("batch 128") == Approx(100 * (2 * 50.0 / 70 - 1)));   // 50 + 18 + 2
  CHECK(gain("batch 256") == -1);                                  // beyond the largest
  CHECK(gain("fp16 gradients") == Approx(100 * (50.0 / 41 - 1)));  // 30 + 9 + 2
  CHECK(gain("gradients compressed to a quarter") == Approx(100 * (50 / 36.5 - 1)));
  CHECK(gain("a path 2 times as fast") == Approx(100 * (50.0 / 41 - 1)));
  CHECK(gain("an update every 2 micro-batches") == Approx(100 * (2 * 50.0 / 80 - 1)));
  for (std::size_t i = 1; i < advice.size(); ++i) {
    CHECK(advice[i - 1].gain_percent >= advice[i].gain_percent);
  }

  Scenario half = base;
  half.gradient_bytes_factor = 0.5;
  for (const Change& change : usual_changes(model, half, 64)) {
    CHECK(change.text.find("fp16") == std::string::npos);
  }
  CHECK(usual_changes(model, base, 64).front().text == "fp16 gradients");

  // Nothing about the exchange helps where there is none; nor does a slower path.
  Scenario slower = base;
  slower.ring.alpha_s = 1;
  Scenario faster_path = base;
  faster_path.ring.bytes_per_s *= 2;
  CHECK(advise(model, "none", base, {{"faster path", faster_path}}).empty());
  CHECK(advise(model, "all-reduce", base, {{"slower", slower}}).empty());
}

TEST_CASE("the buckets that cost least", "[what_if]") {
  const StepModel model(measured_step());
  const auto options = [&](const Scenario& scenario) {
    std::vector<Advice> found;
    for (const Advice& a : advise(model, "ddp", scenario, usual_changes(model, scenario, 64)))
      if (a.text.empty() || a.text.front() == '-') found.push_back(a);
    return found;
  };
  Scenario scenario = four_ranks();
  CHECK(options(scenario).empty());  // no latency: one each is best

  // 6 ms per bucket and 6 ms per gradient. One each: 5..17, 17..29, 29..41, 15 ms hidden, 21
  // exposed. The first alone: 5..17, 20..38, 12 and 18; the last alone: 10..28, 28..40, 10 and 20.
  scenario.ring.alpha_s = 1e-3;
  const auto advice = options(scenario);
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].text == "--bucket-cap-mb 5 --small-bucket-mb 1 --bucket-order small-first");
  CHECK(advice[0].gain_percent == Approx(100 * ((30 + 21 + 1.5 + 2) / (30 + 18 + 1.2 + 2) - 1)));
  scenario.overlap = false;  // no compute that could hide it
  CHECK(options(scenario).empty());
}

TEST_CASE("a model of figures that nobody can have measured", "[what_if]") {
  const auto build = [](auto spoil) {
    MeasuredStep step = measured_step();
    spoil(step);
    return StepModel(std::move(step));
  };
  CHECK_THROWS_AS(build([](MeasuredStep& s) { s.compute.clear(); }), InternalError);
  CHECK_THROWS_AS(build([](MeasuredStep& s) { s.backward_ms = 0; }), InternalError);
  CHECK_THROWS_AS(build([](MeasuredStep& s) { s.optimizer_ms = -1; }), InternalError);
  CHECK_THROWS_AS(build([](MeasuredStep& s) { s.average_ms_per_byte = -1; }), InternalError);
  CHECK_THROWS_AS(build([](MeasuredStep& s) { s.gradients[0].ready_ms = -1; }), InternalError);
}

}  // namespace shakedown::training
