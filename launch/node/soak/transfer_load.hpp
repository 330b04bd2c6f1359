// Copies and collectives as loads of the soak: what they deliver is known, and checked to the bit.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/backend.hpp"
#include "common/device.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "launch/node/compute/verify.hpp"
#include "launch/node/soak/load.hpp"

namespace shakedown::node {

// Verified copies: host to device, within the device, and back, each checked where it arrives.

enum class CopyWay { host_to_device, device_to_device, device_to_host };
const char* name_of(CopyWay way);  // "host to device"

/// For tests: what is wrong with copies of one way.
struct CopyFault {
  CopyWay way = CopyWay::host_to_device;
  std::uint64_t word = 1234;
  int bit = 5;     // of the word that arrives; kNothing: no word does
  int times = -1;  // -1: always
  static constexpr int kNothing = -1;
};

struct CopySettings {
  std::size_t bytes = std::size_t{64} << 20;  // of a copy: whole chunks of ComputeKernels
  int retrials = 100;                         // of a copy that was wrong
  std::optional<CopyFault> fault = {};        // the default one where the load has it
};

/// One operation is a copy each way: pinned host memory, device, device, pinned host memory. Two
/// sources alternate, so what an earlier operation left cannot pass for a copy.
class CopyLoad final : public Load {
 public:
  CopyLoad(Device& device, const LoadSettings& load, const CopySettings& settings);

  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  /// Copied and verified, by CopyWay.
  const std::array<double, 3>& bytes() const { return bytes_; }

 private:
  struct Leg {
    CopyWay way;
    View from, to;
  };

  std::array<Leg, 3> legs_of(int source) const;
  void copy(const Leg& leg);
  WordErrors copy_and_check(const Leg& leg, const Ramp& words);
  Mismatch describe(const Leg& leg, const Ramp& words, const WordErrors& wrong);

  Device& device_;
  LoadSettings load_;
  CopySettings settings_;
  std::unique_ptr<Stream> stream_;
  WordChecker checker_;
  std::array<Buffer, 2> sources_;  // host
  std::array<Ramp, 2> words_;
  Buffer near_, far_;  // device
  Buffer back_;        // host
  std::array<double, 3> bytes_{};
  std::uint64_t operations_ = 0;
};

// Collectives of all ranks with words whose result is known to the bit.

/// Its run() is collective, on the thread that made MPI, and ends when one rank's time is over.
class CollectiveLoad final : public Load {
 public:
  CollectiveLoad(const LoadSettings& settings, Backend& backend);

  LoadCount run(double seconds, std::vector<Mismatch>& found) override;

 private:
  /// A result is in pieces of share_ words.
  struct Operation {
    const char* name;
    std::uint64_t pieces;
    bool from_each;  // piece p comes from rank p alone
    std::function<void(View send, View recv, Stream& stream)> start;
    std::function<Ramp(std::uint64_t piece)> expected;
  };
  std::vector<Operation> operations(std::uint64_t seed, int root);
  /// Returns what is wrong on this rank.
  WordErrors perform(const Operation& operation, std::uint64_t seed);
  Mismatch mismatch_of(const Operation& operation, const WordErrors& wrong);

  LoadSettings settings_;
  Backend& backend_;
  std::uint64_t ranks_;
  std::uint64_t rank_;
  std::size_t share_;  // words that a rank sends to each other one
  std::unique_ptr<Stream> stream_;
  WordChecker checker_;
  Buffer send_, recv_;
  std::unique_ptr<Event> done_;
  std::uint64_t performed_ = 0;
};

}  // namespace shakedown::node
