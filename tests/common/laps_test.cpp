// Times between marks, on a device whose clock the test turns.
#include "common/device.hpp"

#include "common/error.hpp"
#include "tests/catch.hpp"

namespace shakedown {
namespace {

struct IdleStream final : Stream {
  void wait(const Event&) override {}
  void synchronize() override {}
};

class TurnedClock final : public Device {
 public:
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
  BackendKind kind() const override { return BackendKind::cpu; }
  DeviceIdentity identity() const override { return {}; }
  MemoryInfo memory() const override { return {}; }
  const Kernels& kernels() const override { throw InternalError("not here"); }
  std::unique_ptr<Stream> make_stream(StreamPriority) override {
    return std::make_unique<IdleStream>();
  }
  void copy(void*, const void*, std::size_t, Stream&) override {}
  void zero(void*, std::size_t, Stream&) override {}

 protected:
  void* allocate(std::size_t, Place) override { return nullptr; }
  void release(void*, Place) noexcept override {}
};

}  // namespace

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

}  // namespace shakedown
