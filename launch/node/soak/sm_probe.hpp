// Probes: known work that every processor of a device does alike, by kernels that record which one
// they ran on. A vote of the processors names the one that computes wrongly.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "launch/node/soak/probe_chain.hpp"

namespace shakedown::node {

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

/// Operations of a lane in a step, for rates: an FMA counts 2, an integer multiplication with its
/// shifts 1; of mma each lane's part.
double operations_per_step(ProbeKind kind);

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

}  // namespace shakedown::node
