// What is measured of steps: their parts, their layers, their throughput.
#include "training/measure/breakdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "common/error.hpp"
#include "common/nvml.hpp"
#include "tests/catch.hpp"
#include "tests/support/transcript.hpp"
#include "training/measure/layer_times.hpp"
#include "training/measure/records.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/describe.hpp"

namespace shakedown::training {
namespace {

/// "STEP_BEGINS BACKWARD_0 EXPOSED [NAME READY BEGIN END]...": a step of a network of two blocks:
/// input 1 ms, forward 2 and 3, backward of block 1 4 and of block 0 BACKWARD_0, then EXPOSED ms of
/// waiting and 2 of updating; of the exchanges each is enqueued 20 ms before it is ready.
TracedStep step_of(std::istringstream& in) {
  TracedStep s;
  double at = 0, backward_0 = 0, exposed = 0;
  in >> at >> backward_0 >> exposed;
  s.begin_ms = at;
  const auto add = [&](Phase phase, int block, double ms) {
    s.segments.push_back({phase, block, at, at + ms});
    at += ms;
  };
  add(Phase::input, -1, 1);
  add(Phase::forward, 0, 2);
  add(Phase::forward, 1, 3);
  add(Phase::backward, 1, 4);
  add(Phase::backward, 0, backward_0);
  add(Phase::exchange, -1, exposed);
  add(Phase::update, -1, 2);
  s.end_ms = at;
  std::string name;
  for (double ready = 0, begin = 0, end = 0; in >> name >> ready >> begin >> end;)
    s.exchanges.push_back({name, 100, ready, ready - 20, begin, end});
  return s;
}

/// Keys and values but what is 0, null or of the whole run.
std::string text_of(const Json& record) {
  std::string text;
  for (const auto& [key, value] : record.items())
    if (!value.is_null() && (value != 0 || key == "interference_ms") && !key.starts_with("copy_") &&
        !key.starts_with("matrix_"))
      text += fmt::format(" {} {}", key,
                          value.is_number() ? fmt::format("{:.6g}", value.get<double>())
                                            : value.get<std::string>());
  return text.substr(1);
}

/// Of lines "rank N: ..." and "baseline N: ...", in the order of their ranks: "server" or a step.
std::string broken_down(std::istringstream& lines) {
  Trace trace, baseline;
  for (std::string line; std::getline(lines >> std::ws, line);) {
    std::istringstream words(line);
    std::string of, what;
    std::size_t rank = 0;
    words >> of >> rank;
    Trace& into = of == "rank" ? trace : baseline;
    into.resize(std::max(into.size(), rank + 1));
    into[rank].computes = !line.ends_with("server");
    if (!into[rank].computes) continue;
    into[rank].steps.push_back(step_of(words));
  }
  std::string text = text_of(record_of(break_down(trace, baseline.empty() ? nullptr : &baseline)));
  for (const ExchangeTimes& times : exchange_times(trace))
    text += fmt::format("\n{}, exchanges of its name {} ms", text_of(record_of(times)),
                        *exchange_ms(trace, times.what));
  return text;
}

/// 100 bytes or 1000 FLOP an ms.
constexpr Roofs kRoofs{100e-6, 0, 1000e-9, 0};

const ParameterTable& table() {
  static const ParameterTable made(layers_of(find_architecture("resnet18")), 10, 3);
  return made;
}

TimedWork timed(const std::string& kernel, const std::string& parameter, Phase phase, double bytes,
                double flop, double ms) {
  static std::set<std::string> names;  // work points to its kernel's
  const int index = parameter == "-" ? -1 : table().parameter(parameter);
  return {{names.insert(kernel).first->c_str(), index, bytes, flop}, phase, ms};
}

/// Of lines "KERNEL PARAMETER PHASE BYTES FLOP MS".
std::string of_layers(std::istringstream& lines) {
  const std::map<std::string, Phase> phases{{"input", Phase::input},
                                            {"forward", Phase::forward},
                                            {"backward", Phase::backward},
                                            {"update", Phase::update}};
  StepCalls calls{{}, 3, 40, 44, 33, kRoofs, "the exchange"};
  std::string kernel, parameter, phase, text;
  for (double bytes = 0, flop = 0, ms = 0;
       lines >> kernel >> parameter >> phase >> bytes >> flop >> ms;)
    calls.calls.push_back(timed(kernel, parameter, phases.at(phase), bytes, flop, ms));
  for (const LayerTime& each : layer_times(calls.calls, table(), kRoofs))
    text += text_of(record_of(each, calls)) + "\n";
  for (const KernelTime& each : kernel_times(calls.calls, kRoofs))
    text += text_of(record_of(each, calls)) + "\n";
  return text;
}

std::vector<TimedWork> two_calls(double factor) {
  return {timed("normalise_images", "-", Phase::input, 50, 0, factor),
          timed("sgd", "-", Phase::update, 400, 0, 5 * factor)};
}

}  // namespace

TEST_CASE("a step's parts, its exchanges, its layers and its kernels", "[breakdown][layers]") {
  test::check_transcript("tests/training/breakdown.txt", [](const std::string& given) {
    std::istringstream lines(given);
    std::string kind;
    std::getline(lines, kind);
    return kind == "steps" ? broken_down(lines) : of_layers(lines);
  });
}

TEST_CASE("exchanges of a name that a step has not have no sum", "[breakdown]") {
  std::istringstream words("0 5 1 push 15 15 16");
  CHECK_FALSE(exchange_ms({{true, {step_of(words)}}}, "pull").has_value());
}

TEST_CASE("Gradients are ready when their block's backward ends", "[breakdown]") {
  std::istringstream words("100 6 0");
  const BackwardTimes times = backward_times({{true, {step_of(words)}}});
  CHECK(times.ready_ms == std::vector<double>{10, 4});
  CHECK(times.backward_ms == 10);
}

TEST_CASE("a call's time is its median over the steps", "[layers]") {
  std::vector<TimedWork> log;
  for (double factor : {1.0, 9.0, 2.0})
    for (const TimedWork& work : two_calls(factor)) log.push_back(work);
  log[0].ms = 100;  // of the input: 100, 9, 2
  const std::vector<TimedWork> median = median_step(log, 3);
  REQUIRE(median.size() == 2);
  CHECK(median[0].ms == 9);
  CHECK(median[1].ms == 10);
  CHECK(median_sum_ms(log, 3) == 54);  // and 105, 12
  log.resize(4);
  CHECK_NOTHROW(median_step(log, 2));
  CHECK_THROWS_AS(median_step(log, 3), InternalError);
  log[3].work.bytes += 1;  // steps whose calls differ have no median
  CHECK_THROWS_AS(median_step(log, 2), InternalError);
  CHECK_THROWS_AS(median_step({}, 1), InternalError);
}

TEST_CASE("NVLink's counters count where every rank's moved", "[throughput]") {
  CHECK(nvlink_counts_all({101, 102}, {100, 100}));
  CHECK(nvlink_counts_all({0, 0}, {0, 0}));      // none exchanges nothing
  CHECK(nvlink_counts_all({3, 100}, {0, 100}));  // a rank that only receives acknowledges
  CHECK_FALSE(nvlink_counts_all({101}, {100}));  // of one rank alone
  CHECK_FALSE(nvlink_counts_all({101, kUnknown}, {100, 100}));
  CHECK_FALSE(nvlink_counts_all({101, 0}, {100, 100}));  // by PCIe or the host
}

TEST_CASE("a loss that is no number, or no step that trained, fails", "[throughput]") {
  const auto step = [](double loss, int skipped) {
    Throughput measured;
    measured.loss_first = 7;
    measured.loss_last = loss;
    measured.iterations = 4;
    measured.skipped_timed_steps = skipped;
    return measured;
  };
  CHECK_NOTHROW(check_trained(step(6, 3)));
  CHECK_THROWS_AS(check_trained(step(6, 4)), FailError);
  CHECK_THROWS_AS(check_trained(step(NAN, 0)), FailError);
}

TEST_CASE("warm-up goes on until its time is over", "[throughput]") {
  CHECK(steps_to_fill(2, 2, 10) == 0);
  CHECK(steps_to_fill(0, 0.1, 10) == 0);
  CHECK(steps_to_fill(2, 0.5, 10) == 30);
  CHECK(steps_to_fill(2, 1.99, 10) == 1);
  CHECK(steps_to_fill(2, 0, 0) == 1);  // nothing is known of a step's time
}

TEST_CASE("ranks are counted with their nodes", "[throughput]") {
  CHECK(text_of_ranks({"a"}) == "1 rank on 1 node (a)");
  CHECK(text_of_ranks({"b", "b", "a"}) == "3 ranks on 2 nodes (b, a)");
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back("n" + std::to_string(i));
  CHECK_THAT(text_of_ranks(many),
             ContainsSubstring("20 nodes (n0, ") && ContainsSubstring("n7 and 12 more)"));
}

}  // namespace shakedown::training
