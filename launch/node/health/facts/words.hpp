// The words of GpuReading for NVML's numbers.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

namespace shakedown::node {

inline constexpr std::array kComputeModes{"default", "exclusive_thread", "prohibited",
                                          "exclusive_process"};
inline constexpr std::array kFabricStates{"not_supported", "not_started", "in_progress",
                                          "completed"};
inline constexpr std::array kFabricHealth{"not_supported", "healthy", "unhealthy",
                                          "limited_capacity"};
inline constexpr std::array kRecoveryActions{"none",      "reset",           "reboot",
                                             "drain_p2p", "drain_and_reset", "recover_imex_domain"};

/// The number itself where it has no word yet.
template <std::size_t N>
std::string word_of(const std::array<const char*, N>& words, std::uint64_t number) {
  return number < N ? words[number] : fmt::format("{}", number);
}

}  // namespace shakedown::node
