#include "common/sm_clock.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/statistics.hpp"

namespace shakedown {

SmClock::Reading reading_of(std::span<const SmStamp> before, std::span<const SmStamp> after,
                            std::uint64_t number, int sms) {
  std::vector<double> cycles;
  std::vector<double> nanoseconds;
  std::vector<double> mhz;
  for (std::size_t sm = 0; sm < before.size(); ++sm) {
    if (before[sm].number != number || after[sm].number != number + 1) continue;
    if (after[sm].cycles <= before[sm].cycles || after[sm].nanoseconds <= before[sm].nanoseconds)
      continue;
    cycles.push_back(static_cast<double>(after[sm].cycles - before[sm].cycles));
    nanoseconds.push_back(static_cast<double>(after[sm].nanoseconds - before[sm].nanoseconds));
    mhz.push_back(cycles.back() / nanoseconds.back() * 1e3);
  }
  SmClock::Reading reading;
  reading.sms = static_cast<int>(cycles.size());
  if (4 * reading.sms < 3 * sms) {
    reading.unknown = fmt::format("{} of {} SMs were reached by both stamps", reading.sms, sms);
    return reading;
  }
  reading.cycles = median_of(cycles);
  reading.seconds = median_of(nanoseconds) / 1e9;
  reading.clock_mhz = median_of(mhz);
  return reading;
}

SmClock::SmClock(Device& device, std::size_t most)
    : device_(device),
      sms_(device.identity().compute_threads),
      slots_(2 * most),
      count_(device, sizeof(SmStampCount)),
      stamps_(device, slots_ * kMostSms * sizeof(SmStamp)) {
  const auto stream = device.make_stream();
  device.zero(count_.data(), count_.bytes(), *stream);
  device.zero(stamps_.data(), stamps_.bytes(), *stream);
  stream->synchronize();
}

void SmClock::stamp(Stream& stream) {
  gpu::launch_sm_stamp(static_cast<SmStampCount*>(count_.data()),
                       static_cast<SmStamp*>(stamps_.data()), static_cast<std::uint32_t>(slots_),
                       sms_, stream);
}

std::vector<SmClock::Reading> SmClock::readings(Stream& stream) {
  const std::uint32_t stamps =
      download<SmStampCount>(device_, stream, count_.data(), 1).front().stamps;
  const std::uint32_t end = stamps / 2 * 2;
  const auto slots = static_cast<std::uint32_t>(slots_);
  // A start without its stop yet has taken the place of the oldest pair.
  const std::uint32_t oldest = stamps > slots ? (stamps - slots + 1) / 2 * 2 : 0;
  std::vector<Reading> all;
  read_ = std::max(read_, oldest);
  if (read_ >= end) return all;
  const auto found = download<SmStamp>(device_, stream, stamps_.data(), slots_ * kMostSms);
  const auto slot = [&](std::uint32_t stamp) {
    return std::span(found).subspan(stamp % slots * kMostSms, kMostSms);
  };
  for (; read_ < end; read_ += 2)
    all.push_back(reading_of(slot(read_), slot(read_ + 1), read_ + 1, sms_));
  return all;
}

std::unique_ptr<SmClock> make_sm_clock(Device& device, std::size_t most) {
  if (device.kind() != BackendKind::gpu) return nullptr;
  return std::make_unique<SmClock>(device, most);
}

}  // namespace shakedown
