// The memory test: patterns over nearly all of a device's memory, a march at a time.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launch/node/soak/load.hpp"
#include "launch/node/soak/memory_march.hpp"
#include "launch/node/soak/memory_retrial.hpp"
#include "launch/node/soak/other_gpus.hpp"
#include "launch/node/soak/sweep_kernels.hpp"

namespace shakedown::node {

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

  const std::string& name() const override { return name_; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  /// The first wrong word of the call, on two other GPUs.
  LoadCount confer(const MpiSession& jurors, std::vector<Mismatch>& found) override;
  std::string summary() const override;

  /// Passes of all patterns over all of the memory that are complete.
  std::uint64_t passes() const { return pass_; }
  /// Patterns that are complete in the pass that goes on.
  int patterns_done() const;
  /// What is done of that pass: 0 to 1.
  double of_pass() const;
  std::size_t patterns() const { return settings_.patterns.size(); }
  std::size_t bytes() const { return memory_.bytes; }
  /// Of all of the device's memory.
  double tested_share() const {
    return static_cast<double>(memory_.bytes) / static_cast<double>(memory_.total_bytes);
  }

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
  Mismatch describe(const MemoryError& error, const std::string& findings,
                    std::optional<std::size_t> placed_as);
  Attempts attempt(const std::string& task);
  Mismatch too_little() const;
  std::string unit() const { return device_.kind() == BackendKind::gpu ? "SM" : "core"; }

  std::string name_ = "memory";
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
  std::optional<PlacedError> placed_;  // the first of this call
  bool first_call_ = true;
  Clock::time_point ready_;  // when the words have been left alone for long enough
};

/// With the fault where load.fault says so: a bit of one word that does not keep what is written.
std::unique_ptr<MemoryTest> make_memory_test(Device& device, const LoadSettings& load,
                                             const MemoryTestSettings& settings);

}  // namespace shakedown::node
