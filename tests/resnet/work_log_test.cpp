// The log of the calls that a network makes.
#include "resnet/work_log.hpp"

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "resnet/network.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/network.hpp"

namespace shakedown {

TEST_CASE("a log records what runs while it is on", "[work_log]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  WorkLog log(*device, *stream);
  const auto work = [&](const char* name) { log.run({name, 3, 10, 20}, [] {}); };
  work("before");
  log.start();
  log.begin(Phase::backward);
  work("one");
  work("two");
  log.begin(Phase::update);
  work("three");
  const std::vector<TimedWork> timed = log.stop();
  work("after");

  REQUIRE(timed.size() == 3);
  CHECK(timed[1].work.kernel == std::string("two"));
  CHECK(timed[1].work.parameter == 3);
  CHECK(timed[1].phase == Phase::backward);
  CHECK(timed[2].phase == Phase::update);
  log.start(2);
  CHECK(log.stop().empty());
}

TEST_CASE("what comes before a phase begins is no work's", "[work_log]") {
  // the host's time is the stream's on the cpu backend alone
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const auto device = test::open_device(BackendKind::cpu);
  const auto stream = device->make_stream();
  WorkLog log(*device, *stream);
  constexpr auto kPause = std::chrono::milliseconds(20);
  log.start();
  std::this_thread::sleep_for(kPause);
  log.run({"with"}, [] {});
  std::this_thread::sleep_for(kPause);
  const auto begin = std::chrono::steady_clock::now();
  log.begin(Phase::forward);
  log.run({"without"}, [] {});
  const std::chrono::duration<double, std::milli> since = std::chrono::steady_clock::now() - begin;
  const std::vector<TimedWork> timed = log.stop();
  REQUIRE(timed.size() == 2);
  CHECK(timed[0].ms >= 20);
  CHECK(timed[1].ms <= since.count());
}

TEST_CASE("a step's log has the network's FLOP, and every layer forward and backward",
          "[work_log]") {
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

  network.work_log().start();
  network.set_batch(static_cast<const std::uint8_t*>(images.data()),
                    static_cast<const std::int32_t*>(labels.data()));
  for (int block = 0; block < network.blocks(); ++block) network.forward(block, Pass::training);
  for (int block = network.blocks(); block-- > 0;) network.backward(block);
  const std::vector<TimedWork> timed = network.work_log().stop();

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

}  // namespace shakedown
