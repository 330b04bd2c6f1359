#include "common/watch.hpp"

#include <atomic>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "tests/catch.hpp"

using namespace shakedown;
using namespace std::chrono_literals;

TEST_CASE("a call that does not return is noticed while it is made, once") {
  std::atomic<int> noticed = 0;
  CallWatch watch(0.05, [&] { ++noticed; });
  watch.during([&] {
    CHECK(watch.is_calling());
    while (noticed == 0) std::this_thread::sleep_for(1ms);
  });
  CHECK_FALSE(watch.is_calling());
  CHECK(watch.was_late());
  watch.during([] { std::this_thread::sleep_for(120ms); });
  CHECK_FALSE(watch.was_late());
  CHECK(noticed == 1);
}

TEST_CASE("calls that return are not noticed, however many, nor the time between them") {
  std::atomic<int> noticed = 0;
  {
    CallWatch watch(0.4, [&] { ++noticed; });
    for (int call = 0; call < 30; ++call) watch.during([] { std::this_thread::sleep_for(15ms); });
    CHECK_THROWS_AS(watch.during([] { throw std::runtime_error("failed"); }), std::runtime_error);
    std::this_thread::sleep_for(500ms);
  }
  CHECK(noticed == 0);
}

TEST_CASE("no call is too long for an infinite time") {
  CallWatch watch(INFINITY, [] { FAIL("expired"); });
  watch.during([] { std::this_thread::sleep_for(10ms); });
}
