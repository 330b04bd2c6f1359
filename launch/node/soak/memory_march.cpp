#include "launch/node/soak/memory_march.hpp"

#include "common/error.hpp"
#include "common/random.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kOnes = ~std::uint64_t{0};

/// What all words hold in turn.
std::vector<WordRule> rules_of(MemoryPattern pattern, std::uint64_t seed) {
  switch (pattern) {
    case MemoryPattern::random:
      return {{WordKind::random, seed, 0},
              {WordKind::random, seed, kOnes},
              {WordKind::random, seed, 0}};
    case MemoryPattern::address:
      return {{WordKind::address, 0, 0}, {WordKind::address, 0, kOnes}, {WordKind::address, 0, 0}};
    case MemoryPattern::inversions: {
      std::vector<WordRule> rules;
      for (const std::uint64_t background :
           {0x0U, 0x55555555U, 0x33333333U, 0x0F0F0F0FU, 0x00FF00FFU})
        for (const std::uint64_t flip : {std::uint64_t{0}, kOnes})
          rules.push_back({WordKind::constant, 0, (background << 32 | background) ^ flip});
      return rules;
    }
    case MemoryPattern::walking_ones:
    case MemoryPattern::walking_zeros: {
      std::vector<WordRule> rules;
      for (std::uint64_t step = 0; step < 64; ++step)
        rules.push_back(
            {WordKind::walking, step, pattern == MemoryPattern::walking_ones ? 0 : kOnes});
      return rules;
    }
    case MemoryPattern::retention:
      return {{WordKind::random, ~seed, 0}, {WordKind::random, ~seed, kOnes}};
  }
  throw InternalError("a memory pattern without rules");
}

}  // namespace

const char* name_of(MemoryPattern pattern) {
  switch (pattern) {
    case MemoryPattern::random: return "random";
    case MemoryPattern::address: return "address in address";
    case MemoryPattern::inversions: return "moving inversions";
    case MemoryPattern::walking_ones: return "walking ones";
    case MemoryPattern::walking_zeros: return "walking zeros";
    case MemoryPattern::retention: return "retention";
  }
  return "";
}

std::vector<MemoryPattern> all_memory_patterns() {
  return {MemoryPattern::random,       MemoryPattern::address,       MemoryPattern::inversions,
          MemoryPattern::walking_ones, MemoryPattern::walking_zeros, MemoryPattern::retention};
}

std::vector<MarchElement> march_of(const std::vector<MemoryPattern>& patterns, std::uint64_t seed,
                                   std::uint64_t pass) {
  std::vector<MarchElement> march;
  for (const MemoryPattern pattern : patterns) {
    const auto rules = rules_of(pattern, derive_seed(seed, pass));
    for (std::size_t i = 0; i <= rules.size(); ++i) {
      MarchElement element{pattern, {}, {}, i / 2 % 2 == 1, false};  // twice up, twice down
      if (i > 0) element.check = rules[i - 1];
      if (i < rules.size()) element.write = rules[i];
      element.waits = pattern == MemoryPattern::retention && i > 0;
      march.push_back(element);
    }
  }
  return march;
}

}  // namespace shakedown::node
