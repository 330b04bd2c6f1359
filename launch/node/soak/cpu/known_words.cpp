#include "launch/node/soak/known_words.hpp"

#include <algorithm>
#include <cstddef>

namespace shakedown::node::cpu {
namespace {

class CpuWordKernels final : public WordKernels {
 public:
  void fill(View to, const KnownWords& words, Stream&) const override {
    auto* out = static_cast<std::uint64_t*>(to.data);
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < to.count; ++i) out[i] = words.word(i);
  }

  void check(ConstView found, const KnownWords& words, std::uint64_t index, WordErrors* wrong,
             Stream&) const override {
    const auto* in = static_cast<const std::uint64_t*>(found.data);
    unsigned long long count = 0;
    unsigned long long first = ~0ULL;
#pragma omp parallel for schedule(static) reduction(+ : count) reduction(min : first)
    for (std::size_t i = 0; i < found.count; ++i)
      if (in[i] != words.word(i)) {
        ++count;
        first = std::min<unsigned long long>(first, index + i);
      }
    wrong->count += count;
    wrong->first = std::min(wrong->first, first);
  }
};

}  // namespace

std::unique_ptr<WordKernels> make_word_kernels() { return std::make_unique<CpuWordKernels>(); }

}  // namespace shakedown::node::cpu
