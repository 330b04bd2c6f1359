// Graphs, times between marks, the clock of the SMs.
#include "common/device.hpp"

#include <cmath>

#include "common/error.hpp"
#include "common/kernels.hpp"
#include "common/sm_clock.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/fake_device.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kCount = 1 << 20;

/// Two streams, and a sum that grows by one with each add().
struct GraphRig {
  explicit GraphRig(Device& on)
      : device(on),
        stream(on.make_stream()),
        other(on.make_stream(StreamPriority::high)),
        ones(test::to_device(on, *stream, std::vector<float>(kCount, 1))),
        sum(test::to_device(on, *stream, std::vector<float>(kCount, 0))) {
    for (auto* event : {&fork, &join}) *event = on.make_event();
    add(*stream);  // loads the kernel
    stream->synchronize();
  }
  void add(Stream& on) {
    device.kernels().accumulate(sum.view(DataType::float32), ones.view(DataType::float32), false,
                                on);
  }
  bool holds(float value) {
    return download<float>(device, *stream, sum.data(), kCount) ==
           std::vector<float>(kCount, value);
  }
  void enter_other() {
    fork->record(*stream);
    other->wait(*fork);
  }
  void leave_other() {
    join->record(*other);
    stream->wait(*join);
  }

  Device& device;
  std::unique_ptr<Stream> stream, other;
  Buffer ones, sum;
  std::unique_ptr<Event> fork, join;
};

/// Its clock is the test's.
struct TurnedClock final : test::FakeDevice {
  double now_ms = 0;
  int events = 0;

  std::unique_ptr<Event> make_event() override {
    struct Mark final : Event {
      explicit Mark(const double& clock) : now(clock) {}
      void record(Stream&) override { at = now; }
      bool done() const override { return true; }
      void synchronize() const override {}
      double milliseconds_since(const Event& start) const override {
        return at - dynamic_cast<const Mark&>(start).at;
      }
      const double& now;
      double at = 0;
    };
    if (++events > 1000) throw InternalError("an event per lap");
    return std::make_unique<Mark>(now_ms);
  }
};

}  // namespace

TEST_CASE("a backend without graphs says so", "[graph]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  CHECK(device->has_graphs() == (device->kind() == BackendKind::gpu));
  if (device->has_graphs()) return;
  const auto stream = device->make_stream();
  CHECK_THROWS_AS(device->capture(*stream, [] {}), UsageError);
}

GPU_TEST_CASE("a capture that fails is reported, and its streams continue", "[graph]") {
  const auto device = test::open_device(BackendKind::gpu);
  GraphRig rig(*device);
  CHECK_THROWS_AS(device->capture(*rig.stream,
                                  [&] {
                                    rig.enter_other();
                                    rig.add(*rig.other);  // and is not joined
                                  }),
                  InternalError);
  CHECK_THROWS_WITH(device->capture(*rig.stream,
                                    [&] {
                                      rig.enter_other();
                                      rig.add(*rig.other);
                                      throw UsageError("halfway");
                                    }),
                    "halfway");
  CHECK_THROWS_AS(device->capture(*rig.stream, [&] { rig.stream->synchronize(); }), InternalError);
  rig.add(*rig.stream);
  rig.enter_other();
  rig.add(*rig.other);
  rig.leave_other();
  CHECK(rig.holds(3));
  const auto graph = device->capture(*rig.stream, [&] { rig.add(*rig.stream); });
  graph->launch(*rig.stream);
  CHECK(rig.holds(4));
}

// Times between marks, on a device whose clock the test turns.

TEST_CASE("laps of a run of any length need a bounded number of events", "[laps]") {
  TurnedClock device;
  const std::unique_ptr<Stream> stream = device.make_stream(StreamPriority::normal);
  const int laps = GENERATE(1, 255, 256, 257, 2000);
  Laps measured(device, GENERATE(0, 1) == 0 ? laps : 1'000'000'000);
  std::vector<double> expected;
  measured.mark(*stream);
  for (int lap = 1; lap <= laps; ++lap) {
    device.now_ms += lap;
    expected.push_back(lap);
    measured.mark(*stream);
  }
  CHECK(measured.milliseconds() == expected);
}

TEST_CASE("a reading is the median of the SMs that both stamps reached", "[sm-clock]") {
  constexpr int kSms = 132;
  std::vector<SmStamp> before(kMostSms);
  std::vector<SmStamp> after(kMostSms);
  for (std::size_t sm = 0; sm < kSms; ++sm) {  // SMs' counters begin anywhere
    before[sm] = {1000 * sm, 5'000'000 + sm, 7};
    after[sm] = {before[sm].cycles + 30'000'000, before[sm].nanoseconds + 20'000'000, 8};
  }
  after[5].cycles += 1'000'000'000;  // one that is far off moves no median
  SmClock::Reading reading = reading_of(before, after, 7, kSms);
  CHECK(reading.sms == kSms);
  CHECK(reading.cycles == 30'000'000);
  CHECK(reading.seconds == Approx(0.02));
  CHECK(reading.clock_mhz == Approx(1500));
  CHECK(reading.unknown.empty());

  for (std::size_t sm = 0; sm < 33; ++sm) after[sm].number = 6;  // an earlier lap's
  reading = reading_of(before, after, 7, kSms);
  CHECK(reading.sms == 99);
  CHECK(reading.cycles == 30'000'000);
  before[50].number = 0;  // never reached
  reading = reading_of(before, after, 7, kSms);
  CHECK(std::isnan(reading.cycles));
  CHECK(std::isnan(reading.clock_mhz));
  CHECK(reading.unknown == "98 of 132 SMs were reached by both stamps");
}

TEST_CASE("the SM clock times what runs between start and stop, in graphs too", "[sm-clock][gpu]") {
  for (const BackendKind kind : test::backends()) {
    const auto device = test::open_device(kind);
    const auto clock = make_sm_clock(*device, 4);
    REQUIRE((clock != nullptr) == (kind == BackendKind::gpu));
    if (!clock) continue;
    const auto stream = device->make_stream();
    const Buffer busy(*device, sizeof(DuplexTime));
    device->zero(busy.data(), busy.bytes(), *stream);
    const auto timed = [&](std::uint64_t ms) {
      clock->start(*stream);
      device->kernels().occupy_link(static_cast<DuplexTime*>(busy.data()), {ms * 1'000'000, 0},
                                    *stream);
      clock->stop(*stream);
    };
    const auto graph = device->capture(*stream, [&] { timed(9); });
    for (const std::uint64_t ms : {1, 2, 3, 4, 5}) timed(ms);
    graph->launch(*stream);
    const auto readings = clock->readings(*stream);
    REQUIRE(readings.size() == 4);  // the last ones
    for (std::size_t i = 0; i < 4; ++i) {
      const double ms = i < 3 ? 3.0 + static_cast<double>(i) : 9.0;
      INFO(readings[i].unknown);
      CHECK(readings[i].seconds > ms * 1e-3);
      CHECK(readings[i].seconds < 1);
      CHECK(readings[i].clock_mhz > 100);
      CHECK(readings[i].clock_mhz < 5000);
      CHECK(readings[i].sms == device->identity().compute_threads);
    }
    CHECK(clock->readings(*stream).empty());
    timed(1);
    CHECK(clock->readings(*stream).size() == 1);
  }
}

}  // namespace shakedown
