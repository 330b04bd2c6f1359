#include "training/measure/breakdown.hpp"

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

/// One step of a network of two blocks, from `at` on: input 1 ms, forward 2 and 3, backward of
/// block 1 4 and of block 0 `backward_0`, then `exposed` ms of waiting and 2 of updating.
TracedStep step(double at, double backward_0, double exposed, std::vector<Exchanged> exchanges) {
  TracedStep s;
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
  s.exchanges = std::move(exchanges);
  return s;
}

Exchanged exchange(double ready, double begin, double end) {
  return {"all_reduce", 100, ready, ready - 20, begin, end};
}

Trace trace_of(std::vector<TracedStep> steps) { return {{true, std::move(steps)}}; }

}  // namespace

TEST_CASE("A step is the sum of its parts, interference separately", "[breakdown]") {
  const Trace none = trace_of({step(0, 5, 0, {}), step(17, 5, 0, {})});
  // Bucket 0 runs while block 0 computes, which takes 6 instead of 5; bucket 1 after it.
  const Trace ddp =
      trace_of({step(100, 6, 1.5, {exchange(110, 110, 114), exchange(116, 116, 117.5)})});
  const Breakdown b = break_down(ddp, &none);
  CHECK(b.step_ms == 19.5);
  CHECK(b.compute_ms == 14);
  CHECK(b.exposed_comm_ms == 1.5);
  CHECK(b.input_stall_ms == 1);
  CHECK(b.optimizer_ms == 2);
  CHECK(b.hidden_comm_ms == 4);
  CHECK(b.comm_ms == 5.5);
  CHECK(*b.interference_ms == 1);
  CHECK(b.slowdown == 0.2);
  CHECK(b.residual_ms() == 0);
}

TEST_CASE("What slows blocks down that meet no exchange is left over", "[breakdown]") {
  const Trace none = trace_of({step(0, 5, 0, {})});
  const Breakdown b = break_down(trace_of({step(0, 8, 1, {exchange(18, 18, 19)})}), &none);
  CHECK(*b.interference_ms == 0);
  CHECK(b.slowdown == 0);
  CHECK(b.residual_ms() == 3);
}

TEST_CASE("Without a baseline computing is a trace's own", "[breakdown]") {
  const Breakdown b = break_down(trace_of({step(0, 8, 1, {exchange(10, 10, 19)})}), nullptr);
  CHECK(b.compute_ms == 17);
  CHECK_FALSE(b.interference_ms.has_value());
  CHECK(b.residual_ms() == 0);
}

TEST_CASE("Medians over steps, averages over the ranks that compute", "[breakdown]") {
  Trace trace = trace_of({step(0, 5, 0, {}), step(17, 7, 0, {}), step(36, 50, 0, {})});
  trace.push_back({true, {step(0, 9, 0, {})}});
  trace.push_back({false, {}});  // a server
  CHECK(step_ms(trace) == 20);
  CHECK(break_down(trace, nullptr).compute_ms == 17);
}

TEST_CASE("The rank that comes last waits for nobody", "[breakdown]") {
  // Rank 1 computes for 3 ms longer: rank 0's exchange is as much longer.
  Trace trace = trace_of({step(100, 6, 5, {exchange(116, 116, 121)})});
  trace.push_back({true, {step(100, 9, 2, {exchange(119, 119, 121)})}});
  const auto times = exchange_times(trace);
  REQUIRE(times.size() == 1);
  REQUIRE(times[0].waiting.has_value());
  CHECK(times[0].waiting->ms == 1.5);  // 3 and 0
  CHECK(times[0].waiting->straggler == 1);
  CHECK(times[0].waiting->share == 1);
  CHECK(times[0].ready_ms == 17.5);
  CHECK(times[0].launch_ms == -2.5);
  CHECK(times[0].start_ms == 17.5);
  CHECK(times[0].end_ms == 21);
  CHECK(times[0].exposed_ms == 3.5);
  CHECK(times[0].hidden_ms == 0);
}

TEST_CASE("A server's part of the baseline is left out, and in a star nobody waits for all",
          "[breakdown]") {
  Trace none = trace_of({step(0, 50, 0, {})});
  none.push_back({true, {step(0, 5, 0, {})}});
  Exchanged push = exchange(15, 15, 16);
  push.what = "push";
  Trace served = trace_of({});
  served.front().computes = false;
  served.push_back({true, {step(0, 5, 1, {push})}});
  CHECK(break_down(served, &none).compute_ms == 14);
  CHECK_FALSE(exchange_times(served).front().waiting.has_value());
}

TEST_CASE("Exchanges that differ from step to step have no times of their own", "[breakdown]") {
  CHECK(exchange_times(trace_of({step(0, 5, 1, {exchange(15, 15, 16)}), step(18, 5, 0, {})}))
            .empty());
}

TEST_CASE("Sums of the exchanges of one name", "[breakdown]") {
  Exchanged push = exchange(15, 15, 16);
  push.what = "push";
  const Trace trace = trace_of({step(0, 5, 4, {push, push, exchange(17, 17, 19)})});
  CHECK(exchange_ms(trace, "push") == 2.0);
  CHECK_FALSE(exchange_ms(trace, "pull").has_value());
}

TEST_CASE("Gradients are ready when their block's backward ends", "[breakdown]") {
  const BackwardTimes times = backward_times(trace_of({step(100, 6, 0, {})}));
  CHECK(times.ready_ms == std::vector<double>{10, 4});
  CHECK(times.backward_ms == 10);
}

}  // namespace shakedown::training
