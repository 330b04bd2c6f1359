// Fills buffers with operands and checks what an operation made of them, where the memory is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/operands/operands.hpp"
#include "common/types.hpp"

namespace shakedown::collectives {

using operands::kAllRanks;
using operands::Operands;

/// The result of checks; in device memory while they run.
struct Mismatches {
  unsigned long long wrong = 0;      // elements
  unsigned long long first = ~0ULL;  // the lowest index among them
  unsigned long long last = 0;       // the highest
};

/// The wrong elements of one unit.
struct WrongInUnit {
  unsigned count = 0;
  std::size_t first = 0;
  std::size_t last = 0;
};

template <class Bits>
inline constexpr std::size_t kElementsOfUnit = operands::kUnitBytes / sizeof(Bits);

/// Of elements of the unit `unit` of `count`; found[0] is at `position` of `source`.
template <class Bits>
SHAKEDOWN_HOST_DEVICE inline WrongInUnit check_unit(const Bits* found, std::size_t count,
                                                    std::size_t unit, const Operands& operands,
                                                    int source, std::uint64_t position) {
  const std::size_t begin = unit * kElementsOfUnit<Bits>;
  const std::size_t end =
      begin + kElementsOfUnit<Bits> < count ? begin + kElementsOfUnit<Bits> : count;
  WrongInUnit wrong;
  for (std::size_t i = begin; i < end; ++i) {
    if (operands::fits(operands, operands::expected_bits(operands, source, position + i), found[i]))
      continue;
    if (wrong.count++ == 0) wrong.first = i;
    wrong.last = i;
  }
  return wrong;
}

/// Calls body with an unsigned integer of the type's width.
template <class Body>
void with_width(DataType type, Body&& body) {
  switch (size_of(type)) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

/// Work is enqueued on the stream. Views may be device memory or memory from
/// Communicator::allocate.
class Verifier {
 public:
  virtual ~Verifier() = default;
  /// to[i] = what `rank` holds at position first + i.
  virtual void fill(View to, const Operands& operands, int rank, std::uint64_t first,
                    Stream& stream) const = 0;
  /// Overwrites with ones (NaN, -1): what an earlier iteration left cannot pass for a result.
  virtual void poison(View to, Stream& stream) const = 0;
  /// Compares found[i] with what comes from `source` at position first + i; a mismatch counts at
  /// index + i.
  virtual void check(ConstView found, const Operands& operands, int source, std::uint64_t first,
                     std::uint64_t index, Mismatches* result, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<Verifier> make_verifier();
}
namespace gpu {
std::unique_ptr<Verifier> make_verifier();
}
/// Throws UsageError where the backend is not built.
inline std::unique_ptr<Verifier> make_verifier(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_verifier() : cpu::make_verifier();
}

}  // namespace shakedown::collectives
