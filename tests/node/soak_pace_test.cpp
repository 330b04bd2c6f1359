// Square waves and the comparison of rates, on a device that keeps time of its own.
#include <algorithm>
#include <cmath>
#include <map>

#include "common/nvml.hpp"
#include "launch/node/soak/schedule.hpp"
#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

/// Host and device in virtual time.
struct Machine {
  double now = 100.3;  // the host's clock
  double busy = 0;     // until when the device works
  void enqueue(double seconds) {
    now += 1e-5;
    busy = std::max(busy, now) + seconds;
  }
  void wait(double until) { now = std::max(now, until); }
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(Machine& machine) : machine_(machine) {}
  void wait(const Event&) override {}
  void synchronize() override { machine_.wait(machine_.busy); }

 private:
  Machine& machine_;
};

class FakeEvent final : public Event {
 public:
  explicit FakeEvent(Machine& machine) : machine_(machine) {}
  void record(Stream&) override { at_ = std::max(machine_.busy, machine_.now); }
  bool done() const override { return at_ <= machine_.now; }
  void synchronize() const override { machine_.wait(at_); }
  double milliseconds_since(const Event& start) const override {
    return 1e3 * (at_ - dynamic_cast<const FakeEvent&>(start).at_);
  }

 private:
  Machine& machine_;
  double at_ = 0;
};

struct Rig {
  Machine machine;
  FakeStream stream{machine};
  Pace pace{stream,
            {std::make_unique<FakeEvent>(machine), std::make_unique<FakeEvent>(machine),
             std::make_unique<FakeEvent>(machine)},
            {[this] { return machine.now; }, [this](double until) { machine.wait(until); }}};
};

bool never() { return false; }

}  // namespace

TEST_CASE("a square wave is on for half of each period, whatever a product takes", "[soak]") {
  const double hertz = GENERATE(0.5, 1.0, 2.0, 5.0, 10.0);
  const double product_s = GENERATE(2e-4, 1.7e-3, 22e-3);
  constexpr double kWindow = 4.2;
  constexpr int kBatches = 16;
  CAPTURE(hertz, product_s);
  Rig rig;
  std::map<int, int> products;  // by pulse
  const double begin = rig.machine.now;
  rig.pace.begin(hertz);
  for (int batch = 1; batch <= kBatches; ++batch) {
    rig.machine.enqueue(1e-3);  // the operands
    const auto chunks = rig.pace.run(kWindow * batch / kBatches, never, [&](int, auto count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        ++products[static_cast<int>((rig.machine.now - begin + 1e-6) * hertz)];
        rig.machine.enqueue(product_s);
      }
    });
    CHECK(!chunks.empty());
  }
  rig.stream.synchronize();
  CHECK(rig.machine.now - begin <= 1.5 * kWindow);
  const int periods = static_cast<int>(kWindow * hertz);
  for (int period = 0; period < periods; ++period) {
    CAPTURE(period);
    const double on = products[period] * product_s * hertz;  // share of the period
    CHECK(on > 0.4);
    CHECK(on < 0.76);
  }
}

TEST_CASE("a steady load is enqueued in chunks of some milliseconds", "[soak]") {
  Rig rig;
  rig.pace.begin(0);
  std::uint32_t products = 0;
  const auto chunks = rig.pace.run(2, never, [&](int, std::uint32_t count) {
    products += count;
    for (std::uint32_t i = 0; i < count; ++i) rig.machine.enqueue(1e-3);
  });
  CHECK(chunks.back().operations == 8);
  CHECK(products == Approx(2000).epsilon(0.02));
  CHECK(chunks[chunks.size() / 2].seconds == Approx(8e-3));
  // Nothing is known of a chunk before which the queue was empty.
  for (int i = 0; i < 20; ++i) {
    rig.stream.synchronize();
    for (const Chunk& chunk : rig.pace.run(0, never, [&](int, std::uint32_t count) {
           for (std::uint32_t j = 0; j < count; ++j) rig.machine.enqueue(1e-3);
         }))
      CHECK(chunk.operations == 8);
  }
}

TEST_CASE("checked and unchecked products are compared at the same clock", "[soak]") {
  // The clock falls by a fifth in the window, as after products of integers at the power limit.
  Rig rig;
  rig.pace.begin(0);
  ComparedRates rates;
  const double begin = rig.machine.now;
  rates.add(rig.pace.run(0.6, never, [&](int chunk, std::uint32_t count) {
    const double clock = 1 - (rig.machine.now - begin) / 3;
    for (std::uint32_t i = 0; i < count; ++i)
      rig.machine.enqueue((is_checked_chunk(chunk) ? 1.03e-3 : 1e-3) / clock);
  }));
  CHECK(rates.unchecked > 100);
  CHECK(rates.ratio() == Approx(1 / 1.03).epsilon(0.002));
  CHECK(std::isnan(ComparedRates().ratio()));
  ComparedRates few;
  few.add({{1, kUnknown}, {1, 1}, {1, 1}, {1, 1}, {1, kUnknown}});
  CHECK(std::isnan(few.ratio()));
}

}  // namespace shakedown::node
