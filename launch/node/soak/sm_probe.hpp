// Probes: known work that every processor of a device does alike, by kernels that record which one
// they ran on. A vote of the processors names the one that computes wrongly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
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

// The arithmetic that a probe repeats, the same on host and device: chains of operations whose
// every bit goes into a hash, so that two processors that did the same work have the same hash.

/// What is repeated. Sums are of full-entropy values; mma (tensor cores) also multiplies small
/// integers, whose exact result is known.
enum class ProbeKind { integer, fma_fp32, fma_fp64, mma_fp16, mma_bf16 };
const char* name_of(ProbeKind kind);  // "mma fp16"

/// What lanes of a warp compute differs; every warp of every processor computes the same.
inline constexpr int kProbeLanes = 32;

namespace probe {

SHAKEDOWN_HOST_DEVICE inline std::uint64_t start(std::uint64_t seed, int lane) {
  return number_format::hash(seed, static_cast<std::uint64_t>(lane));
}

/// In [1, 2), with all bits of the significand from `bits`.
SHAKEDOWN_HOST_DEVICE inline void from_bits(std::uint64_t bits, float& x) {
  const auto word = (static_cast<std::uint32_t>(bits) & 0x007FFFFFU) | 0x3F800000U;
  std::memcpy(&x, &word, sizeof(x));
}
SHAKEDOWN_HOST_DEVICE inline void from_bits(std::uint64_t bits, double& x) {
  const std::uint64_t word = (bits & 0x000FFFFFFFFFFFFFU) | 0x3FF0000000000000U;
  std::memcpy(&x, &word, sizeof(x));
}
SHAKEDOWN_HOST_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
SHAKEDOWN_HOST_DEVICE inline std::uint64_t bits_of(double x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline constexpr int kFmaPerStep = 32;  // in two chains

/// Two chains that start from the hash and grow (else an error would shrink with them), and the
/// hash of every result's bits: a step of fma_fp32 or fma_fp64. An FMA is rounded once, so its bits
/// are the same everywhere.
template <class Float>
SHAKEDOWN_HOST_DEVICE std::uint64_t fma_step(std::uint64_t hash) {
  Float x = 0;
  Float y = 0;
  Float factor = 0;
  from_bits(hash, x);
  from_bits(hash >> 12, y);
  from_bits(mix(hash + 1), factor);
  const Float addend = x;
  auto sum = bits_of(x);
  for (int i = 0; i < kFmaPerStep / 2; ++i) {
    x = std::fma(x, factor, y);
    y = std::fma(y, factor, addend);
    sum += bits_of(x);
    sum += bits_of(y) * 3;
  }
  return mix(hash ^ (static_cast<std::uint64_t>(sum) << 7));
}

inline constexpr int kMixesPerStep = 8;

SHAKEDOWN_HOST_DEVICE inline std::uint64_t integer_step(std::uint64_t hash) {
  for (int i = 0; i < kMixesPerStep; ++i) hash = number_format::hash(hash, 0);
  return hash;
}

/// A step of a kind that host and device share.
template <ProbeKind kind>
SHAKEDOWN_HOST_DEVICE std::uint64_t step(std::uint64_t hash) {
  if constexpr (kind == ProbeKind::integer) return integer_step(hash);
  if constexpr (kind == ProbeKind::fma_fp32) return fma_step<float>(hash);
  if constexpr (kind == ProbeKind::fma_fp64) return fma_step<double>(hash);
  return hash;
}

/// Half of them of full-entropy values, half of small integers.
inline constexpr int kMmaPerStep = 16;

/// Of mma's exact products: whole numbers from -15 to 15 at (row or column, k).
SHAKEDOWN_HOST_DEVICE inline int small_integer(std::uint64_t seed, int matrix, int line, int k) {
  const auto index = static_cast<std::uint64_t>(matrix * 4096 + line * 64 + k);
  return static_cast<int>(number_format::hash(seed, index) % 31) - 15;
}

}  // namespace probe

/// A processor is an SM, or on the cpu backend a core.
struct ProbeAnswer {
  int processor = 0;
  double ms = 0;                      // that the work took there
  std::vector<std::uint64_t> hashes;  // of each lane of each warp
  std::uint64_t wrong = 0;            // exact products that were not what they are
};

struct ProbeTask {
  ProbeKind kind = ProbeKind::integer;
  std::uint64_t seed = 0;
  int steps = 1000;
};

class Probe {
 public:
  virtual ~Probe() = default;
  /// The kinds that this device has.
  virtual std::vector<ProbeKind> kinds() const = 0;
  virtual std::vector<int> processors() const = 0;
  /// Waits. The answers of those of `processors` that the work got to, once each.
  virtual std::vector<ProbeAnswer> run(const ProbeTask& task, std::span<const int> processors,
                                       Stream& stream) = 0;
};

/// The hash of a lane; for the kinds that the host computes too: all but mma.
std::uint64_t host_hash(const ProbeTask& task, int lane);
bool on_host(ProbeKind kind);

struct WrongProcessor {
  int processor = 0;
  std::size_t wrong_hashes = 0;           // of its lanes and warps
  std::uint64_t wrong_exact = 0;          // exact products
  std::uint64_t expected = 0, found = 0;  // of the first wrong lane; equal: only exact ones were
  int warp = 0, lane = 0;                 // which
};

/// What the processors' answers to one task come to.
struct ProbeRuling {
  std::vector<WrongProcessor> wrong;
  std::vector<std::uint64_t> expected;  // by lane
  std::string undecided;                // why nobody can be named; empty: it was decided
};

/// By lane, what more than half of all warps of all processors have is right. Where fewer than
/// three processors answer, the host computes it too, where it can.
ProbeRuling judge(const ProbeTask& task, std::span<const ProbeAnswer> answers);

/// Those of the answers that differ from the hashes expected, by lane, or are wrong themselves.
std::vector<WrongProcessor> wrong_processors(std::span<const ProbeAnswer> answers,
                                             const std::vector<std::uint64_t>& expected);

namespace cpu {
std::unique_ptr<Probe> make_probe(Device& device);
}
namespace gpu {
std::unique_ptr<Probe> make_probe(Device& device);
}
/// Throws UsageError where the backend is not built.
std::unique_ptr<Probe> make_probe(Device& device);

// The probes as a load: every kind in turn on all processors, the wrong ones named and tried again.

struct ProbeSettings {
  double probe_ms = 10;  // that one probe takes, about
  int retrials = 100;    // of a probe that was wrong
};

/// What the processors of a device took for the same work; exchanged between ranks.
struct ProcessorTimes {
  double processors = 0, reached = 0;
  double slowest = kUnknown;        // its number
  double slowest_ratio = kUnknown;  // of its times to the median processor's, on average
};

class ProbeLoad : public Load {
 public:
  ProbeLoad(Device& device, const LoadSettings& load, const ProbeSettings& settings);

  /// An operation is one probe on one processor. A processor that no probe of a call got to is
  /// reported as inconclusive.
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  /// The first wrong probe of the call, on two other GPUs.
  std::uint64_t confer(const MpiSession& jurors, std::vector<Mismatch>& found) override;
  ProcessorTimes times() const;

 private:
  /// What a processor has done.
  struct Work {
    std::uint64_t probes = 0;
    double relative_ms = 0;  // the sum of its times, each divided by the median of all processors
  };

  /// With the fault where load.fault says so: of the last processor's hash.
  std::vector<ProbeAnswer> answers_of(Probe& probe, const ProbeTask& task,
                                      std::span<const int> processors) const;
  void probe_once(LoadCount& count, std::vector<Mismatch>& found, std::vector<int>& unreached);
  void note_times(ProbeKind kind, std::span<const ProbeAnswer> answers);
  /// Does the task again: address 0 is the probe's own results, any other those of the second one.
  Retrial again(const ProbeTask& task, const std::vector<std::uint64_t>& expected) const;
  void describe(const ProbeTask& task, const WrongProcessor& wrong, const ProbeRuling& ruling,
                std::vector<Mismatch>& found);
  Mismatch inconclusive(const std::string& cause) const;

  Device& device_;
  LoadSettings load_;
  ProbeSettings settings_;
  std::unique_ptr<Probe> probe_, elsewhere_;  // whose results are at other addresses
  std::unique_ptr<Stream> stream_;
  std::vector<ProbeKind> kinds_;
  std::map<ProbeKind, int> steps_;
  std::map<int, Work> work_;  // by processor
  std::string unit_;          // "SM" or "core"
  std::uint64_t operations_ = 0;
  PlacedError placed_;
};

}  // namespace shakedown::node
