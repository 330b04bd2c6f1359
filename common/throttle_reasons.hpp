// Why a GPU's clocks are reduced: bits as nvml.h has them (nvmlClocksEventReason...).
#pragma once

#include <cstdint>

namespace shakedown::throttle {

inline constexpr std::uint64_t kApplicationClocks = 0x002;  // set by an operator
inline constexpr std::uint64_t kPowerCap = 0x004;
inline constexpr std::uint64_t kHwSlowdown = 0x008;  // set with kHwThermal and kPowerBrake as well
inline constexpr std::uint64_t kSyncBoost = 0x010;
inline constexpr std::uint64_t kSwThermal = 0x020;
inline constexpr std::uint64_t kHwThermal = 0x040;
inline constexpr std::uint64_t kPowerBrake = 0x080;
inline constexpr std::uint64_t kDisplayClocks = 0x100;

inline constexpr std::uint64_t kHeat = kSwThermal | kHwThermal;
inline constexpr std::uint64_t kHardware = kHwSlowdown | kPowerBrake;

}  // namespace shakedown::throttle
