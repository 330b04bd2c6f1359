#include "launch/node/soak/copy_load.hpp"

#include <fmt/format.h>

#include <chrono>

#include "common/random.hpp"

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;

std::size_t bytes_for(const Device& device) {
  return std::size_t{1} << (device.kind() == BackendKind::gpu ? 26 : 20);
}

/// The first word of host memory that is wrong.
std::optional<std::uint64_t> first_wrong(const View& host, const KnownWords& words) {
  const auto* found = static_cast<const std::uint64_t*>(host.data);
  for (std::size_t i = 0; i < host.count; ++i)
    if (found[i] != words.word(i)) return i;
  return std::nullopt;
}

}  // namespace

CopyLoad::CopyLoad(const LoadSettings& settings, Device& device)
    : settings_(settings),
      device_(device),
      checker_(device),
      source_(device, bytes_for(device)),
      host_(device, bytes_for(device), Place::host),
      target_(device, bytes_for(device)) {}

WrongWords CopyLoad::round_trip(const KnownWords& words) {
  // The seed differs from the last one's: what an earlier copy left is no right result.
  checker_.fill(source_.view(DataType::uint64), words);
  device_.copy(host_.data(), source_.data(), source_.bytes(), checker_.stream());
  if (settings_.fault) checker_.flip_bit(host_.view(DataType::uint64), 4711);
  device_.copy(target_.data(), host_.data(), host_.bytes(), checker_.stream());
  checker_.begin_check();
  checker_.check(target_.view(DataType::uint64), words, 0);
  return checker_.end_check();
}

Mismatch CopyLoad::mismatch_of(const WrongWords& wrong, const KnownWords& words) {
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = operations_;
  mismatch.index = wrong.first;
  mismatch.where = fmt::format("word {} and {} more of {}", wrong.first, wrong.count - 1,
                               source_.bytes() / sizeof(std::uint64_t));
  mismatch.expected = words.word(wrong.first);
  mismatch.found = checker_.word(target_.view(DataType::uint64), wrong.first);
  const bool in_host = first_wrong(host_.view(DataType::uint64), words).has_value();
  int again = 0;
  constexpr int kRepeats = 100;
  for (int i = 0; i < kRepeats; ++i)
    if (round_trip({settings_.seed + ~static_cast<std::uint64_t>(i)}).count > 0) ++again;
  mismatch.reproduced = again;
  mismatch.repeats = kRepeats;
  mismatch.cause = fmt::format("wrong after the copy {}; reproduces {} of {}",
                               in_host ? "from device to host, or in host memory"
                                       : "from host to device, or in device memory",
                               again, kRepeats);
  mismatch.action = "inspect the GPU's PCIe link and the host's memory";
  return mismatch;
}

LoadCount CopyLoad::run(double seconds, std::vector<Mismatch>& found) {
  LoadCount count;
  const auto start = Clock::now();
  do {
    const KnownWords words{derive_seed(settings_.seed, operations_)};
    const WrongWords wrong = round_trip(words);
    if (wrong.count > 0) {
      if (count.wrong++ == 0) found.push_back(mismatch_of(wrong, words));
    }
    ++count.checked;
    ++operations_;
    count.bytes += 2.0 * static_cast<double>(source_.bytes());
    count.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  } while (count.seconds < seconds && !settings_.stopped());
  return count;
}

}  // namespace shakedown::node
