// Timelines of steps that are launched operation by operation, and as graphs.
#include "training/exchange/timeline.hpp"

#include <thread>

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::training {
namespace {

void pass_time() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

/// The step's second half: what a graph would hold.
void backward(Timeline& timeline, Stream& stream) {
  timeline.exchange("all_gather", 8, stream, pass_time);  // of what came before it
  timeline.mark(Phase::forward, 0);
  pass_time();
  timeline.mark(Phase::backward, 0);
  timeline.exchange("all_reduce", 16, stream, pass_time);
  timeline.mark(Phase::exchange);
}

void check(const TracedStep& step) {
  REQUIRE(step.segments.size() == 4);
  const Phase phases[] = {Phase::input, Phase::forward, Phase::backward, Phase::exchange};
  double now = step.begin_ms;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(step.segments[i].phase == phases[i]);
    CHECK(step.segments[i].begin_ms == now);
    now = step.segments[i].end_ms;
  }
  CHECK(step.end_ms == now);
  CHECK(step.begin_ms >= 0);
  REQUIRE(step.exchanges.size() == 2);
  const Exchanged& gather = step.exchanges[0];
  CHECK(gather.what == "all_gather");
  CHECK(gather.ready_ms == step.segments[0].end_ms);
  const Exchanged& reduce = step.exchanges[1];
  CHECK(reduce.bytes == 16);
  CHECK(reduce.ready_ms == step.segments[2].end_ms);
  CHECK(reduce.begin_ms >= reduce.ready_ms);
  CHECK(reduce.ms() > 1);
}

}  // namespace

TEST_CASE("a timeline reports the steps that it is to trace", "[timeline]") {
  const auto device = test::open_device(test::backends().back());
  const auto stream = device->make_stream();
  Timeline timeline(*device);
  timeline.start(*stream);
  const auto step = [&] {
    timeline.begin_step();
    timeline.mark(Phase::input);
    backward(timeline, *stream);
  };
  double before = 0;
  for (int i = 0; i < 2; ++i) {
    step();
    CHECK_FALSE(timeline.tracing());
    CHECK_THROWS_AS(timeline.read_step(), InternalError);
    timeline.trace_step();
    step();
    stream->synchronize();
    const TracedStep traced = timeline.read_step();
    check(traced);
    CHECK(traced.begin_ms > before);
    CHECK(traced.exchanges[1].launch_ms > traced.exchanges[0].launch_ms);
    before = traced.end_ms;
  }
}

// On the cpu backend events keep the time of the capture, as nothing is launched: only
// the order can be checked.
TEST_CASE("marks of a graph are the step's that launches it", "[timeline]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const auto device = test::open_device(BackendKind::cpu);
  const auto stream = device->make_stream();
  Timeline timeline(*device);
  timeline.start(*stream);
  timeline.trace_step();
  timeline.begin_step();
  timeline.mark(Phase::input);
  const Marks captured = timeline.captured([&] { backward(timeline, *stream); });
  timeline.mark(Phase::update);
  const TracedStep around = timeline.read_step();  // has none of them
  REQUIRE(around.segments.size() == 2);
  CHECK(around.exchanges.empty());

  for (int launch = 0; launch < 2; ++launch) {
    timeline.launched(captured);  // silent
    timeline.trace_step();
    timeline.begin_step();
    for (int part = 0; part < 2; ++part) {
      timeline.mark(Phase::input);
      timeline.launched(captured);
    }
    const TracedStep step = timeline.read_step();
    REQUIRE(step.segments.size() == 8);
    REQUIRE(step.exchanges.size() == 4);
    CHECK(step.segments[0].begin_ms == step.begin_ms);
    CHECK(step.segments[5].phase == Phase::forward);
    CHECK(step.exchanges[2].what == "all_gather");
    CHECK(step.exchanges[2].ready_ms == step.segments[4].end_ms);  // of this part's input
    CHECK(step.exchanges[3].ready_ms == step.segments[6].end_ms);
    CHECK(step.exchanges[2].launch_ms == step.exchanges[3].launch_ms);  // of the graph
    CHECK(step.exchanges[2].launch_ms > step.exchanges[0].launch_ms);
    CHECK(step.exchanges[0].launch_ms > around.end_ms);
  }
}

}  // namespace shakedown::training
