// The recorder of device time: calls of a network, and steps that are launched operation by
// operation, and as graphs.
#include "resnet/recorder.hpp"
#include "common/error.hpp"

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "resnet/network.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/network.hpp"

namespace shakedown {

TEST_CASE("a recorder returns the calls that run while it is on", "[recorder]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  Recorder recorder(*device, *stream);
  const auto work = [&](const char* name) { recorder.run({name, 3, 10, 20}, [] {}); };
  work("before");
  recorder.start_calls();
  recorder.begin(Phase::backward);
  work("one");
  work("two");
  recorder.begin(Phase::update);
  work("three");
  const std::vector<TimedWork> timed = recorder.stop_calls();
  work("after");

  REQUIRE(timed.size() == 3);
  CHECK(timed[1].work.kernel == std::string("two"));
  CHECK(timed[1].work.parameter == 3);
  CHECK(timed[1].phase == Phase::backward);
  CHECK(timed[2].phase == Phase::update);
  recorder.start_calls(2);
  CHECK(recorder.stop_calls().empty());
}

TEST_CASE("what comes before a phase begins is no work's", "[recorder]") {
  // the host's time is the stream's on the cpu backend alone
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const auto device = test::open_device(BackendKind::cpu);
  const auto stream = device->make_stream();
  Recorder recorder(*device, *stream);
  constexpr auto kPause = std::chrono::milliseconds(20);
  recorder.start_calls();
  std::this_thread::sleep_for(kPause);
  recorder.run({"with"}, [] {});
  std::this_thread::sleep_for(kPause);
  const auto begin = std::chrono::steady_clock::now();
  recorder.begin(Phase::forward);
  recorder.run({"without"}, [] {});
  const std::chrono::duration<double, std::milli> since = std::chrono::steady_clock::now() - begin;
  const std::vector<TimedWork> timed = recorder.stop_calls();
  REQUIRE(timed.size() == 2);
  CHECK(timed[0].ms >= 20);
  CHECK(timed[1].ms <= since.count());
}

TEST_CASE("a step's log has the network's FLOP, and every layer both ways", "[recorder]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const std::string model = GENERATE("resnet18", "resnet50");
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const Buffer loss_scale = test::to_device<float>(*device, *stream, {1});
  NetworkSettings settings;
  settings.architecture = find_architecture(model);
  settings.batch_size = 4;
  settings.image_size = 64;
  settings.classes = 24;
  settings.tuning.autotune = false;
  Network network(settings, *device, *stream, static_cast<const float*>(loss_scale.data()));
  test::initialise(network, 1);
  network.allocate();
  const std::vector<std::uint8_t> pixels(4 * 64 * 64 * 3, 100);
  const Buffer images = test::to_device(*device, *stream, pixels);
  const Buffer labels = test::to_device(*device, *stream, std::vector<std::int32_t>{0, 1, 2, 3});

  network.recorder().start_calls();
  network.set_batch(static_cast<const std::uint8_t*>(images.data()),
                    static_cast<const std::int32_t*>(labels.data()));
  for (int block = 0; block < network.blocks(); ++block) network.forward(block, Pass::training);
  for (int block = network.blocks(); block-- > 0;) network.backward(block);
  const std::vector<TimedWork> timed = network.recorder().stop_calls();

  double flop = 0;
  // the gpu's stem convolves channels of zeros, too
  const Parameter& stem = network.table().parameters().front();
  const double real = static_cast<double>(stem.count) / static_cast<double>(stem.stored);
  std::set<int> forward, backward;
  for (const TimedWork& t : timed) {
    INFO(t.work.kernel);
    CHECK(t.work.bytes > 0);
    CHECK(t.ms >= 0);
    flop += t.work.flop * (t.work.parameter == 0 ? real : 1);
    if (t.phase == Phase::forward) forward.insert(t.work.parameter);
    if (t.phase == Phase::backward) backward.insert(t.work.parameter);
  }
  const FlopCount expected = flop_per_image(network.layers(), 64, 24);
  CHECK(flop == Approx(4 * expected.training));
  CHECK(timed.front().phase == Phase::input);
  std::set<int> weights;
  for (std::size_t i = 0; i < network.table().parameters().size(); ++i)
    if (network.table().parameters()[i].shape.size() > 1) weights.insert(static_cast<int>(i));
  CHECK(forward == weights);
  CHECK(backward == weights);
}

namespace {

void pass_two_ms() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

/// The step's second half: what a graph would hold.
void backward_half(Recorder& recorder, Stream& stream) {
  recorder.exchange("all_gather", 8, stream, pass_two_ms);  // of what came before it
  recorder.mark(Phase::forward, 0);
  pass_two_ms();
  recorder.mark(Phase::backward, 0);
  recorder.exchange("all_reduce", 16, stream, pass_two_ms);
  recorder.mark(Phase::exchange);
}

void check_segments(const TracedStep& step) {
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

TEST_CASE("a recorder returns the steps that it is to trace", "[recorder]") {
  const auto device = test::open_device(test::backends().back());
  const auto stream = device->make_stream();
  Recorder recorder(*device, *stream);
  recorder.start_trace();
  const auto step = [&] {
    recorder.begin_step();
    recorder.mark(Phase::input);
    backward_half(recorder, *stream);
  };
  double before = 0;
  for (int i = 0; i < 2; ++i) {
    step();
    CHECK_FALSE(recorder.tracing());
    CHECK_THROWS_AS(recorder.read_step(), InternalError);
    recorder.trace_step();
    step();
    stream->synchronize();
    const TracedStep traced = recorder.read_step();
    check_segments(traced);
    CHECK(traced.begin_ms > before);
    CHECK(traced.exchanges[1].launch_ms > traced.exchanges[0].launch_ms);
    before = traced.end_ms;
  }
}

// On the cpu backend events keep the time of the capture, as nothing is launched: only
// the order can be checked.
CPU_TEST_CASE("marks of a graph are the step's that launches it", "[recorder]") {
  const auto device = test::open_device(BackendKind::cpu);
  const auto stream = device->make_stream();
  Recorder recorder(*device, *stream);
  recorder.start_trace();
  recorder.trace_step();
  recorder.begin_step();
  recorder.mark(Phase::input);
  const Marks captured = recorder.captured([&] { backward_half(recorder, *stream); });
  recorder.mark(Phase::update);
  const TracedStep around = recorder.read_step();  // has none of them
  REQUIRE(around.segments.size() == 2);
  CHECK(around.exchanges.empty());

  for (int launch = 0; launch < 2; ++launch) {
    recorder.launched(captured);  // silent
    recorder.trace_step();
    recorder.begin_step();
    for (int part = 0; part < 2; ++part) {
      recorder.mark(Phase::input);
      recorder.launched(captured);
    }
    const TracedStep step = recorder.read_step();
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

}  // namespace shakedown
