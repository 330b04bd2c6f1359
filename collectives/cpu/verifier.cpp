#include "collectives/verifier.hpp"

#include <algorithm>
#include <cstring>

namespace shakedown::collectives::cpu {
namespace {

/// Gives operands what is constant in a loop, so that the compiler knows it.
template <bool combined, Reduction reduction>
struct Known {
  Operands operator()(Operands o) const {
    o.combined = combined;
    o.reduction = reduction;
    return o;
  }
};

/// Calls body with Known of the operands: without branches on the reduction, filling and checking
/// take two thirds of the time.
template <class Body>
void with_reduction(const Operands& o, Body&& body) {
  if (!o.combined) return body(Known<false, Reduction::sum>());
  switch (o.reduction) {
    case Reduction::sum: return body(Known<true, Reduction::sum>());
    case Reduction::prod: return body(Known<true, Reduction::prod>());
    case Reduction::min: return body(Known<true, Reduction::min>());
    case Reduction::max: return body(Known<true, Reduction::max>());
    case Reduction::avg: return body(Known<true, Reduction::avg>());
  }
}

/// Calls body with an unsigned integer of the type's width and Known of the operands.
template <class Body>
void with_constants(const Operands& operands, Body&& body) {
  with_width(operands.type, [&]<class Bits>(Bits bits) {
    with_reduction(operands, [&](auto known) { body(bits, known); });
  });
}

class CpuVerifier final : public Verifier {
 public:
  void fill(View to, const Operands& operands, int rank, std::uint64_t first,
            Stream&) const override {
    with_constants(operands, [&]<class Bits>(Bits, auto known) {
      auto* x = static_cast<Bits*>(to.data);
      const Operands o = operands;  // in registers
#pragma omp parallel for schedule(static) firstprivate(o)
      for (std::size_t i = 0; i < to.count; ++i)
        x[i] = static_cast<Bits>(input_bits(known(o), rank, first + i));
    });
  }

  void poison(View to, Stream&) const override { std::memset(to.data, 0xFF, to.bytes()); }

  void check(ConstView found, const Operands& operands, int source, std::uint64_t first,
             std::uint64_t index, Mismatches* result, Stream&) const override {
    with_constants(operands, [&]<class Bits>(Bits, auto known) {
      const auto* x = static_cast<const Bits*>(found.data);
      const Operands o = operands;  // in registers
      const std::size_t all = (found.count + kElementsOfUnit<Bits> - 1) / kElementsOfUnit<Bits>;
      unsigned long long wrong = 0;
      unsigned long long lowest = result->first;
      unsigned long long highest = result->last;
#pragma omp parallel for schedule(static) firstprivate(o) reduction(+ : wrong) \
    reduction(min : lowest) reduction(max : highest)
      for (std::size_t u = 0; u < all; ++u) {
        const WrongInUnit unit = check_unit(x, found.count, u, known(o), source, first);
        if (unit.count == 0) continue;
        wrong += unit.count;
        lowest = std::min<unsigned long long>(lowest, index + unit.first);
        highest = std::max<unsigned long long>(highest, index + unit.last);
      }
      result->wrong += wrong;
      result->first = lowest;
      result->last = highest;
    });
  }
};

}  // namespace

std::unique_ptr<Verifier> make_verifier() { return std::make_unique<CpuVerifier>(); }

}  // namespace shakedown::collectives::cpu
