// Waiting for an event without trusting that it will come.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "common/device.hpp"
#include "common/error.hpp"

namespace shakedown {

/// Polls `event`, and `check` (which throws on an asynchronous error) now and then; sleeps between
/// polls once it has waited `spin_s`. Throws TimeoutError past the timeout.
template <class Check>
void wait_until_done(const Event& event, double timeout_s, double spin_s, Check&& check,
                     const char* cause = "another rank has stopped, died or fallen behind") {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (long round = 0; !event.done(); ++round) {
    if (round % 64 != 0) continue;
    check();
    const std::chrono::duration<double> waited = Clock::now() - start;
    if (waited.count() > timeout_s)
      throw TimeoutError(fmt::format(
          "the device did not finish its work within {:g} s (--timeout): {}", timeout_s, cause));
    if (waited.count() > spin_s) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace shakedown
