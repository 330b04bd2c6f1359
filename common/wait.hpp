// Waiting for a device without trusting that it will finish.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "common/device.hpp"
#include "common/error.hpp"

namespace shakedown {

/// Polls `done`, and `check` (which throws on an asynchronous error) now and then; sleeps between
/// polls once it has waited `spin_s`. Throws TimeoutError with the cause past the timeout.
template <class Done, class Check>
void wait_until(Done&& done, double timeout_s, double spin_s, Check&& check,
                const std::string& cause) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (long round = 0; !done(); ++round) {
    if (round % 64 != 0) continue;
    check();
    const std::chrono::duration<double> waited = Clock::now() - start;
    if (waited.count() > timeout_s)
      throw TimeoutError(fmt::format(
          "the device did not finish its work within {:g} s (--timeout): {}", timeout_s, cause));
    if (waited.count() > spin_s) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

/// For an event that waits for other ranks.
template <class Check>
void wait_until_done(const Event& event, double timeout_s, double spin_s, Check&& check) {
  wait_until([&] { return event.done(); }, timeout_s, spin_s, std::forward<Check>(check),
             "another rank has stopped, died or fallen behind");
}

}  // namespace shakedown
