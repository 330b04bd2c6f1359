// Words of 8 bytes that are known wherever they go: what copies and collectives deliver is checked
// to the bit, where it is.
#pragma once

#include <cstdint>
#include <memory>

#include "common/device.hpp"
#include "launch/node/compute/stream_kernels.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

/// Word i is factor * mix(seed, i) + addend, modulo 2^64. The sum of the words of n ranks that have
/// factor 1 and addend `rank` has factor n and addend n (n - 1) / 2: exact in any order.
struct KnownWords {
  std::uint64_t seed = 0;
  std::uint64_t factor = 1;
  std::uint64_t addend = 0;
  std::uint64_t first = 0;  // the index of a buffer's first word

  SHAKEDOWN_HOST_DEVICE std::uint64_t word(std::uint64_t i) const {
    return factor * number_format::hash(seed, first + i) + addend;
  }
};

/// Work is enqueued on the stream. Views are of uint64.
class WordKernels {
 public:
  virtual ~WordKernels() = default;
  virtual void fill(View to, const KnownWords& words, Stream& stream) const = 0;
  /// Counts a wrong word at index + i.
  virtual void check(ConstView found, const KnownWords& words, std::uint64_t index,
                     WordErrors* wrong, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<WordKernels> make_word_kernels();
}
namespace gpu {
std::unique_ptr<WordKernels> make_word_kernels();
}
/// Throws UsageError where the backend is not built.
inline std::unique_ptr<WordKernels> make_word_kernels(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_word_kernels() : cpu::make_word_kernels();
}

}  // namespace shakedown::node
