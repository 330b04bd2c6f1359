// The SMs' clock cycles that work on a stream needs, counted on the device: a kernel of one warp
// per SM writes every SM's clock64 and the GPU's %globaltimer before the work and after it. Counted
// so, the cycles of a product are a property of the GPU, and the clock is the one that it had.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/nvml.hpp"

namespace shakedown {

/// What one SM writes.
struct SmStamp {
  std::uint64_t cycles = 0, nanoseconds = 0;
  std::uint64_t number = 0;  // of the stamp, from 1 on; another one's: it did not reach this SM
};

/// In device memory, before the stamps.
struct SmStampCount {
  std::uint32_t stamps = 0;   // complete
  std::uint32_t arrived = 0;  // blocks of the one under way
};

class SmClock {
 public:
  /// From one start to the next stop: medians over the SMs that both reached.
  struct Reading {
    double cycles = kUnknown;
    double seconds = kUnknown;
    double clock_mhz = kUnknown;
    int sms = 0;
    std::string unknown = "";  // why there are no figures: fewer than 3/4 of the SMs were reached
  };

  /// Of a gpu device. Keeps the last `most` readings that were not read yet.
  SmClock(Device& device, std::size_t most);

  /// Enqueue, do not wait, and can be a part of a graph: each launch is a reading then. Starts and
  /// stops alternate in the order in which the device runs them.
  void start(Stream& stream) { stamp(stream); }
  void stop(Stream& stream) { stamp(stream); }

  /// Of all pairs since the last call, in order. Waits for the stream.
  std::vector<Reading> readings(Stream& stream);

 private:
  void stamp(Stream& stream);

  Device& device_;
  int sms_;
  std::size_t slots_;  // stamps
  Buffer count_, stamps_;
  std::uint32_t read_ = 0;  // stamps
};

/// Null on the cpu backend, which has no such counters.
std::unique_ptr<SmClock> make_sm_clock(Device& device, std::size_t most);

/// Of the stamps `number` and `number` + 1 of all SMs, of which the GPU has `sms`.
SmClock::Reading reading_of(std::span<const SmStamp> before, std::span<const SmStamp> after,
                            std::uint64_t number, int sms);

/// Above every %smid that there is: a stamp has this many elements.
inline constexpr std::size_t kMostSms = 512;

namespace gpu {
/// `stamps`: `slots` of kMostSms each; the slot is the stamp's number modulo slots.
void launch_sm_stamp(SmStampCount* count, SmStamp* stamps, std::uint32_t slots, int sms,
                     Stream& stream);
}  // namespace gpu

}  // namespace shakedown
