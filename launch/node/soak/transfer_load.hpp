// Copies and collectives as loads of the soak: what they deliver is known, and checked to the bit.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/backend.hpp"
#include "common/device.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "launch/node/compute/stream_kernels.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

// Words of 8 bytes that are known wherever they go: what copies and collectives deliver is checked
// to the bit, where it is.

/// Word i is factor * mix(seed, i) + addend, modulo 2^64. The sum of the words of n ranks that have
/// factor 1 and addend `rank` has factor n and addend n (n - 1) / 2: exact in any order.
struct KnownWords {
  std::uint64_t seed = 0;
  std::uint64_t factor = 1;
  std::uint64_t addend = 0;
  std::uint64_t first = 0;  // the index of a buffer's first word

  SHAKEDOWN_HOST_DEVICE std::uint64_t word(std::uint64_t i) const {
    return factor * number_format::hash(seed, first + i) + addend;
  }
};

/// Work is enqueued on the stream. Views are of uint64.
class WordKernels {
 public:
  virtual ~WordKernels() = default;
  virtual void fill(View to, const KnownWords& words, Stream& stream) const = 0;
  /// Counts a wrong word at index + i.
  virtual void check(ConstView found, const KnownWords& words, std::uint64_t index,
                     WordErrors* wrong, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<WordKernels> make_word_kernels();
}
namespace gpu {
std::unique_ptr<WordKernels> make_word_kernels();
}
/// Throws UsageError where the backend is not built.
inline std::unique_ptr<WordKernels> make_word_kernels(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_word_kernels() : cpu::make_word_kernels();
}

/// Known words in device memory, filled and checked by one load on one stream.
class WordChecker {
 public:
  explicit WordChecker(Device& device)
      : device_(device),
        stream_(device.make_stream()),
        kernels_(make_word_kernels(device.kind())),
        wrong_(device, sizeof(WordErrors)) {}

  Stream& stream() { return *stream_; }
  void fill(View to, const KnownWords& words) { kernels_->fill(to, words, *stream_); }
  void begin_check() {
    const WordErrors none;
    device_.copy(wrong_.data(), &none, sizeof(none), *stream_);
  }
  void check(ConstView found, const KnownWords& words, std::uint64_t index) {
    kernels_->check(found, words, index, static_cast<WordErrors*>(wrong_.data()), *stream_);
  }
  /// Of all checks since begin_check(); waits for them.
  WordErrors end_check() {
    return download<WordErrors>(device_, *stream_, wrong_.data(), 1).front();
  }
  std::uint64_t word(ConstView from, std::uint64_t index) {
    const ConstView one = from.slice(static_cast<std::size_t>(index), 1);
    return download<std::uint64_t>(device_, *stream_, one.data, 1).front();
  }
  /// A fault for tests.
  void flip_bit(View in, std::uint64_t index) {
    shakedown::flip_bit(device_, *stream_, in, index, 17);
  }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<WordKernels> kernels_;
  Buffer wrong_;
};

// Verified copies: host to device, within the device, and back, each checked where it arrives.

enum class CopyWay { host_to_device, device_to_device, device_to_host };
const char* name_of(CopyWay way);  // "host to device"

struct CopySettings {
  std::size_t bytes = std::size_t{64} << 20;  // of a copy
  int retrials = 100;                         // of a copy that was wrong
};

/// One operation is a copy each way: pinned host memory, device, device, pinned host memory. Two
/// sources alternate, so what an earlier operation left cannot pass for a copy.
class CopyLoad : public Load {
 public:
  CopyLoad(Device& device, const LoadSettings& load, const CopySettings& settings);

  const std::string& name() const override { return name_; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  std::string summary() const override;

 protected:
  virtual void copy(CopyWay way, View to, ConstView from, Stream& stream);
  Device& device() { return device_; }

 private:
  struct Leg {
    CopyWay way;
    View from, to;
  };

  std::array<Leg, 3> legs_of(int source) const;
  WordErrors copy_and_check(const Leg& leg, const KnownWords& words);
  Mismatch describe(const Leg& leg, const KnownWords& words, const WordErrors& wrong);

  std::string name_ = "copy";
  Device& device_;
  LoadSettings load_;
  CopySettings settings_;
  WordChecker checker_;
  std::array<Buffer, 2> sources_;  // host
  std::array<KnownWords, 2> words_;
  Buffer near_, far_;  // device
  Buffer back_;        // host
  std::array<double, 3> bytes_{};
  std::uint64_t operations_ = 0;
};

/// With the fault where load.fault says so: a bit of what arrives on the device.
std::unique_ptr<CopyLoad> make_copy_load(Device& device, const LoadSettings& load,
                                         const CopySettings& settings);

// Collectives of all ranks with words whose result is known to the bit.

/// Its run() is collective, on the thread that made MPI, and ends when one rank's time is over.
class CollectiveLoad final : public Load {
 public:
  CollectiveLoad(const LoadSettings& settings, Backend& backend);

  const std::string& name() const override { return name_; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;

 private:
  /// A result is in pieces of share_ words.
  struct Operation {
    const char* name;
    std::uint64_t pieces;
    bool from_each;  // piece p comes from rank p alone
    std::function<void(View send, View recv, Stream& stream)> start;
    std::function<KnownWords(std::uint64_t piece)> expected;
  };
  std::vector<Operation> operations(std::uint64_t seed, int root);
  /// Returns what is wrong on this rank.
  WordErrors perform(const Operation& operation, std::uint64_t seed);
  Mismatch mismatch_of(const Operation& operation, const WordErrors& wrong);

  LoadSettings settings_;
  std::string name_ = "collective";
  Backend& backend_;
  std::uint64_t ranks_;
  std::uint64_t rank_;
  std::size_t share_;  // words that a rank sends to each other one
  WordChecker checker_;
  Buffer send_, recv_;
  std::unique_ptr<Event> done_;
  std::uint64_t performed_ = 0;
};

}  // namespace shakedown::node
