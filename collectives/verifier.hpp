// Fills buffers with a pattern and checks what an operation made of it, where the memory is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/pattern.hpp"
#include "common/device.hpp"

namespace shakedown::collectives {

/// The result of checks; in device memory while they run.
struct Mismatches {
  unsigned long long wrong = 0;      // elements
  unsigned long long first = ~0ULL;  // the lowest index among them
};

/// The action of a verdict on wrong data.
inline constexpr const char* kWrongDataAction =
    "launch/variants shows with which transports they occur";

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
  virtual void fill(View to, const Pattern& pattern, int rank, std::uint64_t first,
                    Stream& stream) const = 0;
  /// Overwrites with ones (NaN, -1): what an earlier iteration left cannot pass for a result.
  virtual void poison(View to, Stream& stream) const = 0;
  /// Compares found[i] with what comes from `source` at position first + i; a mismatch counts at
  /// index + i.
  virtual void check(ConstView found, const Pattern& pattern, int source, std::uint64_t first,
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
