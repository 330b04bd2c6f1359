#include "collectives/verifier.hpp"

#include <algorithm>
#include <cstring>

namespace shakedown::collectives::cpu {
namespace {

/// Gives a pattern what is constant in a loop, so that the compiler knows it.
template <bool combined, Reduction reduction>
struct Known {
  Pattern operator()(Pattern p) const {
    p.combined = combined;
    p.reduction = reduction;
    return p;
  }
};

/// Calls body with Known of the pattern: without branches on the reduction, filling and checking
/// take two thirds of the time.
template <class Body>
void with_reduction(const Pattern& p, Body&& body) {
  if (!p.combined) return body(Known<false, Reduction::sum>());
  switch (p.reduction) {
    case Reduction::sum: return body(Known<true, Reduction::sum>());
    case Reduction::prod: return body(Known<true, Reduction::prod>());
    case Reduction::min: return body(Known<true, Reduction::min>());
    case Reduction::max: return body(Known<true, Reduction::max>());
    case Reduction::avg: return body(Known<true, Reduction::avg>());
  }
}

/// Calls body with an unsigned integer of the type's width and Known of the pattern.
template <class Body>
void with_constants(const Pattern& pattern, Body&& body) {
  with_width(pattern.type, [&]<class Bits>(Bits bits) {
    with_reduction(pattern, [&](auto known) { body(bits, known); });
  });
}

class CpuVerifier final : public Verifier {
 public:
  void fill(View to, const Pattern& pattern, int rank, std::uint64_t first,
            Stream&) const override {
    with_constants(pattern, [&]<class Bits>(Bits, auto known) {
      auto* x = static_cast<Bits*>(to.data);
      Pattern p = pattern;  // in registers
#pragma omp parallel for schedule(static) firstprivate(p)
      for (std::size_t i = 0; i < to.count; ++i)
        x[i] = static_cast<Bits>(input_bits(known(p), rank, first + i));
    });
  }

  void poison(View to, Stream&) const override { std::memset(to.data, 0xFF, to.bytes()); }

  void check(ConstView found, const Pattern& pattern, int source, std::uint64_t first,
             std::uint64_t index, Mismatches* result, Stream&) const override {
    with_constants(pattern, [&]<class Bits>(Bits, auto known) {
      const auto* x = static_cast<const Bits*>(found.data);
      Pattern p = pattern;  // in registers
      unsigned long long wrong = 0;
      unsigned long long lowest = result->first;
#pragma omp parallel for schedule(static) firstprivate(p) reduction(+ : wrong) \
    reduction(min : lowest)
      for (std::size_t i = 0; i < found.count; ++i) {
        if (fits(known(p), expected_bits(known(p), source, first + i), x[i])) continue;
        ++wrong;
        lowest = std::min<unsigned long long>(lowest, index + i);
      }
      result->wrong += wrong;
      result->first = lowest;
    });
  }
};

}  // namespace

std::unique_ptr<Verifier> make_verifier() { return std::make_unique<CpuVerifier>(); }

}  // namespace shakedown::collectives::cpu
