// The memory test: patterns over nearly all of a device's memory, a march at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/nvml.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

// What a word of the tested memory holds, as a function of its index: the same on host and device.

/// Words have 8 bytes and are numbered through all of the tested memory.
enum class WordKind {
  address,   // the word's own byte offset
  random,    // a hash of index and seed
  constant,  // zeros
  walking,   // a one, at bit (index + seed) modulo 64
};

/// The value of a word: of its kind, with the bits of `flip` inverted.
struct WordRule {
  WordKind kind = WordKind::constant;
  std::uint64_t seed = 0;
  std::uint64_t flip = 0;
  bool operator==(const WordRule&) const = default;
};

/// The two words of 16 bytes share one hash: a hash for each word would cost a GPU more time than
/// its memory does.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t random_word(std::uint64_t index, std::uint64_t seed) {
  const std::uint64_t hash = number_format::hash(seed, index / 2);
  return index % 2 == 0 ? hash : ((hash << 29) | (hash >> 35)) ^ 0xA5A5A5A5A5A5A5A5U;
}

/// `kind` is given apart from the rule so that a kernel knows it when it is compiled.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t word_of(WordKind kind, const WordRule& rule,
                                                   std::uint64_t index) {
  switch (kind) {
    case WordKind::address: return (index * 8) ^ rule.flip;
    case WordKind::random: return random_word(index, rule.seed) ^ rule.flip;
    case WordKind::constant: return rule.flip;
    case WordKind::walking: return (std::uint64_t{1} << ((index + rule.seed) % 64)) ^ rule.flip;
  }
  return 0;
}

// The patterns of the memory test as one march: elements that each sweep all of the memory before
// the next one begins, so that a write to one address that changes another is found wherever both
// lie (van de Goor, "Testing Semiconductor Memories", 1991).

enum class MemoryPattern {
  random,         // a hash of address and seed, then its inverse
  address,        // each word's own address, then its inverse
  inversions,     // moving inversions of five backgrounds: 0, 01, 0011, 00001111, 8 zeros 8 ones
  walking_ones,   // one bit of a word, at each of its 64 places
  walking_zeros,  // the inverse
  retention,      // random words and their inverse, each left alone for a while
};
const char* name_of(MemoryPattern pattern);  // "walking ones"
std::vector<MemoryPattern> all_memory_patterns();

/// All of the memory is checked by one rule, then overwritten by the next, word by word.
struct MarchElement {
  MemoryPattern pattern = MemoryPattern::random;
  std::optional<WordRule> check, write;
  bool descending = false;
  bool waits = false;  // for the time of retention, before it
};

/// A pass: all elements of the patterns in order. Random words differ from pass to pass.
std::vector<MarchElement> march_of(const std::vector<MemoryPattern>& patterns, std::uint64_t seed,
                                   std::uint64_t pass);

// Writes words by a rule and checks them, at the speed of memory and where the memory is.

/// A part of the tested memory: whole groups of 16 bytes.
struct MemoryBlock {
  View words;               // uint64
  std::uint64_t first = 0;  // the number of its first word
};

inline constexpr int kAnyProcessor = -1;

/// What is done to each word of a block: checked, then overwritten. Both rules are of one kind.
struct Sweep {
  std::optional<WordRule> check;
  std::optional<WordRule> write;
  bool descending = false;
  std::uint32_t id = 0;           // MemoryError::sweep has it
  int processor = kAnyProcessor;  // else by this one alone: an SM, or a core
};

/// Of the rules that there are: one at least.
WordKind kind_of(const Sweep& sweep);

/// One word that was not what it must be.
struct MemoryError {
  std::uint64_t index = 0;
  std::uint64_t expected = 0, found = 0;
  std::uint64_t found_again = 0;  // by a second reading
  std::uint32_t sweep = 0;
  std::int32_t processor = 0;  // that read it
};

/// What sweeps have found; in device memory while they run. The count is exact, the list bounded.
struct MemoryErrors {
  static constexpr std::size_t kListed = 256;
  unsigned long long count = 0;
  unsigned long long swept_by_one = 0;  // sweeps by one processor that this processor has done
  MemoryError list[kListed];
};

class SweepKernels {
 public:
  virtual ~SweepKernels() = default;
  /// Enqueues. A sweep by one processor that does not get there does nothing, and is not counted.
  virtual void sweep(const MemoryBlock& block, const Sweep& sweep, MemoryErrors* found,
                     Stream& stream) const = 0;
  /// The processors' numbers: SMs, or the cores that this process may use.
  virtual std::vector<int> processors() const = 0;
};

namespace cpu {
std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device);
}
namespace gpu {
std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device);
}
/// Throws UsageError where the backend is not built.
std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device);

// A wrong word of memory, tried again: written and read by one processor, by others, and elsewhere.

/// A block of the tested memory and what its words hold; none: nothing was written yet.
struct MemoryPart {
  MemoryBlock block;
  std::optional<WordRule> holds;
};

/// Keeps the little memory that retrials need, for there is none left while a test goes on.
class MemoryRetrial {
 public:
  /// `parts`: of the memory, which may be allocated later.
  MemoryRetrial(Device& device, const SweepKernels& kernels, Stream& stream,
                const std::vector<MemoryPart>& parts);

  /// Tries the error's word with the rule that it broke; with `elsewhere` also by other processors
  /// and at other addresses. Afterwards all parts hold what they held.
  Evidence collect(const MemoryError& error, const WordRule& rule, int repeats,
                   bool elsewhere = true);

 private:
  void sweep(const MemoryBlock& block, const Sweep& sweep, const Buffer& found) const;
  std::optional<bool> is_wrong(const WordRule& rule, int processor, std::uint64_t index) const;
  std::uint64_t words() const;
  const MemoryPart& part_at(std::uint64_t index) const;
  MemoryBlock row_at(std::uint64_t index) const;
  void flush(std::uint64_t from) const;

  Device& device_;
  const SweepKernels& kernels_;
  Stream& stream_;
  const std::vector<MemoryPart>& parts_;
  Buffer errors_;   // MemoryErrors of the retrial
  Buffer ignored_;  // and of what only pushes the word out of the caches
};

struct MemoryTestSettings {
  double share = 0.95;                             // of the device's memory that is free now
  std::size_t host_bytes = std::size_t{64} << 20;  // instead, on the cpu backend
  std::size_t block_bytes = std::size_t{1} << 30;  // swept by one kernel
  double retention_s = 10;                         // that words are left alone
  double least_share = 0;                          // of available_share(): less is inconclusive
  double free_share = 1;                           // of all of it, before the program allocated any
  std::vector<MemoryPattern> patterns = all_memory_patterns();
  int retrials = 100;  // of what is found, by each way of placing it
};

/// How much of a rank's memory was tested; exchanged between ranks. All 0 without that load.
struct MemoryCoverage {
  double share = kUnknown;                 // of all of the GPU's; kUnknown on the cpu backend
  double passes = 0;                       // complete ones, of all patterns
  double patterns_done = 0, patterns = 0;  // of the pass that goes on, and in all
  double of_pass = 0;                      // what is done of the pass that goes on: 0 to 1
  double bytes = 0;                        // tested

  /// By every pattern, or there is nothing to cover.
  bool is_whole() const { return patterns == 0 || passes >= 1; }
};

/// In as few buffers as it fits into.
struct TestedMemory {
  std::vector<Buffer> buffers;
  std::size_t bytes = 0;
  std::size_t free_bytes = 0, total_bytes = 0;  // of the device, before
};
/// Throws InconclusiveError, with what was obtained, where that is less than the share.
TestedMemory allocate_tested(Device& device, const MemoryTestSettings& settings);

/// run() sweeps block by block, goes on where the last call ended, and covers all of the memory
/// over calls. While words are left alone it returns at once and counts nothing, so that other
/// loads keep the memory hot. What it finds is placed by doing it again.
class MemoryTest : public Load {
 public:
  MemoryTest(Device& device, const LoadSettings& load, const MemoryTestSettings& settings,
             std::unique_ptr<SweepKernels> kernels);

  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  /// The first wrong word of the call, on two other GPUs.
  std::uint64_t confer(const MpiSession& jurors, std::vector<Mismatch>& found) override;

  MemoryCoverage coverage() const;

 private:
  /// Of what this program does not hold itself: its products and its context are no one else's.
  double available_share() const {
    const auto total = static_cast<double>(memory_.total_bytes);
    const double available = (1 - settings_.free_share) * total +
                             std::min(total, static_cast<double>(memory_.free_bytes));
    return static_cast<double>(memory_.bytes) / available;
  }
  using Clock = std::chrono::steady_clock;

  bool waits() const;
  void sweep_next(LoadCount& count);
  void advance();
  std::uint64_t collect(std::vector<Mismatch>& found);
  Mismatch describe(const MemoryError& error, const MarchElement& element,
                    const std::string& findings);
  Mismatch too_little() const;

  Device& device_;
  LoadSettings load_;
  MemoryTestSettings settings_;
  std::unique_ptr<SweepKernels> kernels_;
  std::unique_ptr<Stream> stream_;
  std::array<std::unique_ptr<Event>, 2> done_;  // of the last two sweeps
  Buffer errors_;                               // MemoryErrors
  MemoryRetrial retrial_;
  TestedMemory memory_;  // what is left after all of the above
  std::vector<MemoryPart> parts_;
  std::vector<MarchElement> march_;
  std::uint64_t pass_ = 0;
  std::size_t element_ = 0, part_ = 0;  // that come next
  std::uint64_t sweeps_ = 0;
  PlacedError placed_;
  bool first_call_ = true;
  Clock::time_point ready_;  // when the words have been left alone for long enough
};

/// With the fault where load.fault says so.
std::unique_ptr<MemoryTest> make_memory_test(Device& device, const LoadSettings& load,
                                             const MemoryTestSettings& settings);

/// For tests: a bit of one word that does not hold what is written to it: checks find it inverted.
struct MemoryFault {
  std::uint64_t word = 12345;
  int bit = 17;
  int times = -1;                 // that it is wrong; -1: always
  int processor = kAnyProcessor;  // only where this one reads it, at whichever address
};
std::unique_ptr<SweepKernels> inject(const MemoryFault& fault, Device& device,
                                     std::unique_ptr<SweepKernels> kernels);

// What wrong words of memory have in common: corrupted addresses are periodic where an address or
// data line is at fault, and a weak cell has its one bit.

/// "3 words of 8 bytes: bit 17, 1 instead of 0; every 4096 words, index 5 modulo 32". `count` are
/// all, of which `listed` may be the first few.
std::string findings_text(std::span<const MemoryError> listed, std::uint64_t count);

}  // namespace shakedown::node
