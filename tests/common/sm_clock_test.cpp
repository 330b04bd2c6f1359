#include "common/sm_clock.hpp"

#include <cmath>

#include "common/kernels.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

using namespace shakedown;
using namespace shakedown::test;

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
  for (const BackendKind kind : backends()) {
    const auto device = open_device(kind);
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
