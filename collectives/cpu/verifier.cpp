#include "collectives/verifier.hpp"

#include <algorithm>
#include <cstring>

#include "common/error.hpp"

namespace shakedown::collectives::cpu {
namespace {

class CpuVerifier final : public Verifier {
 public:
  void fill(View to, const Pattern& pattern, int rank, std::uint64_t first,
            Stream&) const override {
    with_width(to.type, [&]<class Bits>(Bits) {
      auto* x = static_cast<Bits*>(to.data);
      Pattern p = pattern;  // in registers
#pragma omp parallel for schedule(static) firstprivate(p)
      for (std::size_t i = 0; i < to.count; ++i)
        x[i] = static_cast<Bits>(input_bits(p, rank, first + i));
    });
  }

  void poison(View to, Stream&) const override { std::memset(to.data, 0xFF, to.bytes()); }

  void check(ConstView found, const Pattern& pattern, int source, std::uint64_t first,
             std::uint64_t index, Mismatches* result, Stream&) const override {
    with_width(found.type, [&]<class Bits>(Bits) {
      const auto* x = static_cast<const Bits*>(found.data);
      Pattern p = pattern;  // in registers
      unsigned long long wrong = 0;
      unsigned long long lowest = result->first;
#pragma omp parallel for schedule(static) firstprivate(p) reduction(+ : wrong) \
    reduction(min : lowest)
      for (std::size_t i = 0; i < found.count; ++i) {
        if (fits(p, expected_bits(p, source, first + i), x[i])) continue;
        ++wrong;
        lowest = std::min<unsigned long long>(lowest, index + i);
      }
      result->wrong += wrong;
      result->first = lowest;
    });
  }

  void flip_bit(View in, std::size_t index, int bit, Stream&) const override {
    auto* byte = static_cast<unsigned char*>(in.slice(index, 1).data) + bit / 8;
    *byte = static_cast<unsigned char>(*byte ^ (1U << (bit % 8)));
  }
};

}  // namespace

std::unique_ptr<Verifier> make_verifier() { return std::make_unique<CpuVerifier>(); }

}  // namespace shakedown::collectives::cpu
