#include "common/bit_hash.hpp"

#include <fmt/format.h>

#include "common/error.hpp"

namespace shakedown {
namespace {

template <class Word>
std::uint64_t sum_of(ConstView x) {
  const auto* words = static_cast<const Word*>(x.data);
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (std::size_t i = 0; i < x.count; ++i) sum += element_hash(i, words[i]);
  return sum;
}

}  // namespace

std::uint64_t bit_hash(ConstView x) {
  switch (size_of(x.type)) {
    case 1: return sum_of<std::uint8_t>(x);
    case 2: return sum_of<std::uint16_t>(x);
    case 4: return sum_of<std::uint32_t>(x);
    case 8: return sum_of<std::uint64_t>(x);
    default: throw InternalError(fmt::format("bit_hash of {}", name_of(x.type)));
  }
}

}  // namespace shakedown
