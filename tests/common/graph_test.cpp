// Work captured in a graph: what takes part in it, what it waits for, and what is left when it
// fails.
#include "common/device.hpp"
#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kCount = 1 << 20;

/// Two streams, and a sum that grows by one with each add().
struct Rig {
  explicit Rig(Device& on)
      : device(on),
        stream(on.make_stream()),
        other(on.make_stream(StreamPriority::high)),
        ones(test::to_device(on, *stream, std::vector<float>(kCount, 1))),
        sum(test::to_device(on, *stream, std::vector<float>(kCount, 0))) {
    for (auto* event : {&fork, &join, &begin, &end}) *event = on.make_event();
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
  std::unique_ptr<Event> fork, join, begin, end;
};

bool has_graphs(const Device& device) { return device.kind() == BackendKind::gpu; }

}  // namespace

TEST_CASE("a backend without graphs says so", "[graph]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  CHECK(device->has_graphs() == has_graphs(*device));
  if (has_graphs(*device)) return;
  const auto stream = device->make_stream();
  CHECK_THROWS_AS(device->capture(*stream, [] {}), UsageError);
}

TEST_CASE("a graph repeats the captured work of its streams with every launch", "[graph]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const auto device = test::open_device(BackendKind::gpu);
  Rig rig(*device);
  rig.join->record(*rig.other);
  const auto graph = device->capture(*rig.stream, [&] {
    rig.stream->wait(*rig.join);  // from before: passed over
    rig.add(*rig.stream);
    rig.enter_other();
    rig.begin->record_time(*rig.other);
    rig.add(*rig.other);
    rig.end->record_time(*rig.other);
    rig.leave_other();
    rig.add(*rig.stream);
  });
  CHECK(rig.holds(1));  // captured, not run
  for (int launch = 1; launch <= 3; ++launch) {
    rig.add(*rig.stream);
    graph->launch(*rig.stream);
    CHECK(rig.holds(static_cast<float>(1 + 4 * launch)));
    CHECK(rig.end->milliseconds_since(*rig.begin) > 0);
  }
  // the capture leaves both streams usable
  rig.other->wait(*rig.join);
  rig.enter_other();
  rig.add(*rig.other);
  rig.leave_other();
  CHECK(rig.holds(14));
}

TEST_CASE("a capture that fails is reported, and its streams continue", "[graph]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const auto device = test::open_device(BackendKind::gpu);
  Rig rig(*device);
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

}  // namespace shakedown
