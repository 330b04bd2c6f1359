// When operations are enqueued on a stream: chunk by chunk, steadily or as a square wave.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/device.hpp"

namespace shakedown::node {

/// The host's clock, in seconds. Tests have one of their own.
struct PaceClock {
  std::function<double()> now;
  std::function<void(double until)> sleep_until;
};
PaceClock steady_clock();

/// Operations that were enqueued together.
struct Chunk {
  std::uint32_t operations = 0;
  double seconds = 0;  // on the device; kUnknown: it may have been idle before, or still works
};

/// One chunk is under way while the next one is enqueued; of a square wave none is, so that what is
/// on ends with the pulse. Chunks grow until one takes some milliseconds; never beyond a quarter of
/// a period.
class Pace {
 public:
  Pace(Stream& stream, std::array<std::unique_ptr<Event>, 3> events,
       PaceClock clock = steady_clock());

  /// Time is counted from here. Each period of `hertz` begins with its pulse; 0: always on.
  void begin(double hertz);
  /// `enqueue(chunk, operations)` again and again, once at least, until `seconds` after begin().
  std::vector<Chunk> run(double seconds, const std::function<bool()>& stopped,
                         const std::function<void(int chunk, std::uint32_t operations)>& enqueue);

 private:
  bool rest();
  Event& event(std::uint64_t chunk) { return *events_[chunk % events_.size()]; }

  Stream& stream_;
  std::array<std::unique_ptr<Event>, 3> events_;  // ends of chunks
  PaceClock clock_;
  double begin_ = 0;
  double hertz_ = 0;
  std::uint32_t size_ = 1;      // of the next chunk
  std::uint64_t enqueued_ = 0;  // chunks
};

/// Where rates are compared the first chunk and then two of each four are checked: of chunks 1 to 4
/// the outer ones, and so on. What changes steadily, as the clock does at the power limit, is the
/// same for both.
inline bool is_checked_chunk(int chunk) { return chunk % 4 < 2; }

/// Operations per second of checked chunks, and of unchecked ones between them, in whole fours of
/// known times.
struct ComparedRates {
  double checked = 0, checked_s = 0;
  double unchecked = 0, unchecked_s = 0;
  void add(const std::vector<Chunk>& chunks);
  /// Checked over unchecked; kUnknown where there were no such fours.
  double ratio() const;
};

}  // namespace shakedown::node
