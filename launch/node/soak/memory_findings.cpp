#include "launch/node/soak/memory_findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace shakedown::node {

std::string bits_text(std::uint64_t difference) {
  const int count = std::popcount(difference);
  if (count > 8) return fmt::format("{} bits", count);
  std::vector<int> bits;
  for (int bit = 0; bit < 64; ++bit)
    if ((difference >> bit & 1U) != 0) bits.push_back(bit);
  return fmt::format("{} {}", count == 1 ? "bit" : "bits", fmt::join(bits, ", "));
}

CommonTraits traits_of(std::span<const MemoryError> errors) {
  CommonTraits traits;
  if (errors.empty()) return traits;
  traits.lowest = errors.front().index;
  bool one_lane = true;
  for (const MemoryError& error : errors) {
    const std::uint64_t difference = error.expected ^ error.found;
    traits.any_bits |= difference;
    if ((difference & error.found) != 0) ++traits.set;
    if ((difference & error.expected) != 0) ++traits.cleared;
    if (error.found_again == error.expected) ++traits.transient;
    traits.lowest = std::min(traits.lowest, error.index);
    one_lane = one_lane && error.index % 32 == errors.front().index % 32;
  }
  for (const MemoryError& error : errors)
    traits.period = std::gcd(traits.period, error.index - traits.lowest);
  if (one_lane && traits.period != 0) traits.lane = static_cast<int>(traits.lowest % 32);
  return traits;
}

std::string findings_text(std::span<const MemoryError> listed, std::uint64_t count) {
  const CommonTraits traits = traits_of(listed);
  std::string text =
      fmt::format("{} {} of 8 bytes{}: {}, {}", count, count == 1 ? "word" : "words",
                  listed.size() < count ? fmt::format(", of the first {}", listed.size()) : "",
                  bits_text(traits.any_bits),
                  traits.cleared == 0 ? "1 instead of 0"
                  : traits.set == 0   ? "0 instead of 1"
                                      : "both ways");
  if (traits.period > 1) text += fmt::format("; every {} words", traits.period);
  if (traits.lane >= 0) text += fmt::format("; index {} modulo 32", traits.lane);
  if (traits.transient > 0) text += fmt::format("; {} right when read again", traits.transient);
  return text;
}

}  // namespace shakedown::node
