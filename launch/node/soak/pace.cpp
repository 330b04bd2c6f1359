#include "launch/node/soak/pace.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "common/nvml.hpp"

namespace shakedown::node {

PaceClock steady_clock() {
  using Clock = std::chrono::steady_clock;
  return {[] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); },
          [](double until) {
            std::this_thread::sleep_until(Clock::time_point(
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(until))));
          }};
}

Pace::Pace(Stream& stream, std::array<std::unique_ptr<Event>, 3> events, PaceClock clock)
    : stream_(stream), events_(std::move(events)), clock_(std::move(clock)) {}

void Pace::begin(double hertz) {
  begin_ = clock_.now();
  hertz_ = hertz;
  size_ = 1;
  for (auto& event : events_) event->record(stream_);
}

/// Until the next pulse; whether there was none.
bool Pace::rest() {
  if (hertz_ <= 0) return false;
  const double periods = (clock_.now() - begin_) * hertz_;
  if (periods - std::floor(periods) < 0.5) return false;
  stream_.synchronize();
  clock_.sleep_until(begin_ + (std::floor(periods) + 1) / hertz_);
  return true;
}

std::vector<Chunk> Pace::run(
    double seconds, const std::function<bool()>& stopped,
    const std::function<void(int chunk, std::uint32_t operations)>& enqueue) {
  // Shorter chunks grow to at most twice this.
  const double shortest = hertz_ > 0 ? std::min(5e-3, 0.25 / hertz_ / 2) : 5e-3;
  std::vector<Chunk> chunks;
  do {
    // Else the wait below is not for a chunk of this size, or not for the whole of it.
    const bool timed = !rest() && !chunks.empty() && chunks.back().operations == size_;
    const double start = clock_.now();
    const auto chunk = static_cast<int>(chunks.size());
    enqueue(chunk, size_);
    chunks.push_back({size_, kUnknown});
    event(enqueued_).record(stream_);
    event(hertz_ > 0 ? enqueued_ : enqueued_ + 2).synchronize();  // + 2: the one before
    if (chunk >= 2)
      chunks[static_cast<std::size_t>(chunk) - 1].seconds =
          event(enqueued_ + 2).milliseconds_since(event(enqueued_ + 1)) / 1e3;
    ++enqueued_;
    if (timed && clock_.now() - start < shortest && size_ < 1024) size_ *= 2;
  } while (clock_.now() - begin_ < seconds && !stopped());
  return chunks;
}

void ComparedRates::add(const std::vector<Chunk>& chunks) {
  for (std::size_t first = 1; first + 4 <= chunks.size(); first += 4) {
    const Chunk* const four = &chunks[first];
    if (!std::isfinite(four[0].seconds + four[1].seconds + four[2].seconds + four[3].seconds))
      continue;
    checked += four[0].operations + four[3].operations;
    checked_s += four[0].seconds + four[3].seconds;
    unchecked += four[1].operations + four[2].operations;
    unchecked_s += four[1].seconds + four[2].seconds;
  }
}

double ComparedRates::ratio() const {
  return unchecked_s > 0 && checked_s > 0 ? checked / checked_s / (unchecked / unchecked_s)
                                          : kUnknown;
}

}  // namespace shakedown::node
