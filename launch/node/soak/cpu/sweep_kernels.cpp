#include "launch/node/soak/sweep_kernels.hpp"

#include <sched.h>

#include <algorithm>

#include "common/error.hpp"
#include "launch/node/soak/cpu/processors.hpp"

namespace shakedown::node::cpu {
namespace {

constexpr std::uint64_t kChunk = 512;  // words: one after another they stay in the first cache

void list(std::uint64_t* words, std::uint64_t count, std::uint64_t first, const Sweep& sweep,
          MemoryErrors* found) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t expected = word_of(sweep.check->kind, *sweep.check, first + i);
    if (words[i] == expected) continue;
#pragma omp critical(shakedown_memory_errors)
    if (const unsigned long long slot = found->count++; slot < MemoryErrors::kListed) {
      const std::uint64_t again = *static_cast<volatile std::uint64_t*>(words + i);
      found->list[slot] = {first + i, expected, words[i], again, sweep.id, sched_getcpu()};
    }
  }
}

template <WordKind kind>
void sweep_chunk(std::uint64_t* words, std::uint64_t count, std::uint64_t first, const Sweep& sweep,
                 MemoryErrors* found) {
  if (sweep.check) {
    const WordRule rule = *sweep.check;
    std::uint64_t difference = 0;
    for (std::uint64_t i = 0; i < count; ++i)
      difference |= words[i] ^ word_of(kind, rule, first + i);
    if (difference != 0) list(words, count, first, sweep, found);
  }
  if (sweep.write) {
    const WordRule rule = *sweep.write;
    for (std::uint64_t i = 0; i < count; ++i) words[i] = word_of(kind, rule, first + i);
  }
}

template <WordKind kind>
void sweep_block(const MemoryBlock& block, const Sweep& sweep, MemoryErrors* found) {
  auto* const words = static_cast<std::uint64_t*>(block.words.data);
  const std::uint64_t count = block.words.count;
  const std::uint64_t chunks = (count + kChunk - 1) / kChunk;
  const auto chunk = [&](std::uint64_t number) {
    const std::uint64_t at = (sweep.descending ? chunks - 1 - number : number) * kChunk;
    sweep_chunk<kind>(words + at, std::min(kChunk, count - at), block.first + at, sweep, found);
  };
  if (sweep.processor == kAnyProcessor) {
#pragma omp parallel for schedule(static)
    for (std::uint64_t number = 0; number < chunks; ++number) chunk(number);
    return;
  }
  const auto done = run_on_cores(std::span(&sweep.processor, 1), [&](std::size_t) {
    for (std::uint64_t number = 0; number < chunks; ++number) chunk(number);
  });
  found->swept_by_one += done.size();
}

class CpuSweepKernels final : public SweepKernels {
 public:
  explicit CpuSweepKernels(int cores) : cores_(first_cores(cores)) {}

  void sweep(const MemoryBlock& block, const Sweep& sweep, MemoryErrors* found,
             Stream&) const override {
    switch (kind_of(sweep)) {
      case WordKind::address: return sweep_block<WordKind::address>(block, sweep, found);
      case WordKind::random: return sweep_block<WordKind::random>(block, sweep, found);
      case WordKind::constant: return sweep_block<WordKind::constant>(block, sweep, found);
      case WordKind::walking: return sweep_block<WordKind::walking>(block, sweep, found);
    }
  }
  std::vector<int> processors() const override { return cores_; }

 private:
  std::vector<int> cores_;
};

}  // namespace

std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device) {
  return std::make_unique<CpuSweepKernels>(device.identity().compute_threads);
}

}  // namespace shakedown::node::cpu
