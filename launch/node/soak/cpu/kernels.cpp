#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "common/host.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::cpu {
namespace {

// The cores that stand for a GPU's SMs on the cpu backend.

/// Of those that this thread may use, `most` at most.
std::vector<int> first_cores(int most) {
  std::vector<int> cores = allowed_cores();
  cores.resize(std::min(cores.size(), static_cast<std::size_t>(most)));
  return cores;
}

/// Calls body with the position of each core in `cores`, all at once, each on a thread that is
/// bound to the core. Waits. The positions of those that could be bound: else body was not called.
std::vector<std::size_t> run_on_cores(std::span<const int> cores,
                                      const std::function<void(std::size_t)>& body) {
  std::vector<char> bound(cores.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < cores.size(); ++i)
    threads.emplace_back([&, i] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<std::size_t>(cores[i]), &set);
      bound[i] = sched_setaffinity(0, sizeof(set), &set) == 0 ? 1 : 0;
      if (bound[i] != 0) body(i);
    });
  threads.clear();  // joins them
  std::vector<std::size_t> done;
  for (std::size_t i = 0; i < cores.size(); ++i)
    if (bound[i] != 0) done.push_back(i);
  return done;
}

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

namespace {

class CpuTileHasher final : public TileHasher {
 public:
  void make_keys(std::uint64_t seed, View keys, Stream&) const override {
    for (std::size_t word = 0; word < keys.count; ++word)
      static_cast<std::uint64_t*>(keys.data)[word] = key_of_word(seed, word);
  }
  void hash(ConstView matrix, const TileGrid& grid, const Turn& turn, ConstView keys,
            std::uint32_t product, TileRecord* records, Stream&) const override {
    const auto* bytes = static_cast<const std::byte*>(matrix.data);
    const auto* words = static_cast<const std::uint64_t*>(keys.data);
#pragma omp parallel for schedule(static)
    for (std::int64_t place = 0; place < grid.tiles(); ++place) {
      const std::int64_t tile = turn.rows.tile(place / grid.across()) * grid.across() +
                                turn.columns.tile(place % grid.across());
      add_hash(records[tile], hash_of_place(bytes + grid.begin(place), grid, turn, words), product);
    }
  }

 private:
  /// Of the tile that begins there.
  static std::uint64_t hash_of_place(const std::byte* begin, const TileGrid& grid, const Turn& turn,
                                     const std::uint64_t* keys) {
    const int words = grid.tile_row_bytes() / 8;  // per row
    const int columns = 8 / grid.element_bytes;   // per word
    std::uint64_t hash = 0;
    for (int row = 0; row < kTileEdge; ++row) {
      const std::uint64_t* const of_row = keys + turn.rows.line(row) * words;
      for (int word = 0; word < words; ++word) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, begin + row * grid.row_bytes() + std::int64_t{word} * 8, sizeof(bits));
        hash += share_of_word(bits, of_row[turn.columns.line(word * columns) / columns]);
      }
    }
    return hash;
  }
};

}  // namespace

std::unique_ptr<TileHasher> make_tile_hasher() { return std::make_unique<CpuTileHasher>(); }

namespace {

class CpuProbe final : public Probe {
 public:
  explicit CpuProbe(int cores) : cores_(first_cores(cores)) {}

  std::vector<ProbeKind> kinds() const override {
    return {ProbeKind::integer, ProbeKind::fma_fp32, ProbeKind::fma_fp64};
  }
  std::vector<int> processors() const override { return cores_; }

  std::vector<ProbeAnswer> run(const ProbeTask& task, std::span<const int> processors,
                               Stream&) override {
    std::vector<ProbeAnswer> all(processors.size());
    const auto done = run_on_cores(processors, [&](std::size_t i) {
      all[i].processor = processors[i];
      const auto begin = std::chrono::steady_clock::now();
      for (int lane = 0; lane < kProbeLanes; ++lane) all[i].hashes.push_back(host_hash(task, lane));
      const std::chrono::duration<double, std::milli> elapsed =
          std::chrono::steady_clock::now() - begin;
      all[i].ms = elapsed.count();
    });
    std::vector<ProbeAnswer> answers;
    for (const std::size_t i : done) answers.push_back(std::move(all[i]));
    return answers;
  }

 private:
  std::vector<int> cores_;
};

}  // namespace

std::unique_ptr<Probe> make_probe(Device& device) {
  return std::make_unique<CpuProbe>(device.identity().compute_threads);
}

}  // namespace shakedown::node::cpu
