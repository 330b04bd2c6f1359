// One kind of work that a soak repeats and checks: products, memory, copies, collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/program.hpp"
#include "common/record.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown {
class MpiSession;
}

namespace shakedown::node {

/// Whether a signal has come: what is known by then must do.
using Stopped = std::function<bool()>;
inline bool never_stopped() { return false; }

/// What a load is made with.
struct LoadSettings {
  std::uint64_t seed = 0;           // the same on every rank
  std::optional<FaultKind> fault;   // on this rank, for tests: injected where it is this load's
  Stopped stopped = never_stopped;  // then end after this operation
};

/// What one call of run() did on this rank.
struct LoadCount {
  std::uint64_t checked = 0;        // operations, each of them verified
  std::uint64_t wrong = 0;          // of them
  std::uint64_t self_compared = 0;  // of those checked, with the same GPU's other results alone
  double bytes = 0;                 // moved, or read, and verified
  double flop = 0;
  double seconds = 0;  // that the counted work took
  std::uint64_t turns =
      0;  // of products: distinct pairs of seed and turn, of full entropy, checked
  LoadCount& operator+=(const LoadCount& more) {
    checked += more.checked;
    wrong += more.wrong;
    self_compared += more.self_compared;
    bytes += more.bytes;
    flop += more.flop;
    seconds += more.seconds;
    turns += more.turns;
    return *this;
  }
};

/// One thing that was wrong, as it goes to the record, the verdict and the capsule, and what the
/// load concludes of it: a judgement on the reporting rank's GPU, or on the job. A load reports the
/// first few of a call; LoadCount::wrong has them all.
struct Mismatch : Judgement {
  std::string load;                    // "product bf16", "probe", "memory", "copy", "collective"
  std::uint64_t operation = 0;         // of the load's operations, from its construction
  std::string where;                   // "element 17 of 4096", "tile 3,5", "offset 0x1f00"
  std::optional<std::uint64_t> index;  // the same as a number: element, tile or byte offset
  std::optional<std::uint64_t> expected, found;  // bits of the element, or hashes of the tile
  std::optional<int> sm;                         // where own kernels computed it
  std::optional<int> reproduced, repeats;        // "reproduces k of n" on this GPU
  bool of_all = false;  // all GPUs have it, so none of them is to blame; else the reporting rank's
  std::string replay;   // JSON, what --replay needs to repeat it; empty: it cannot

  void conclude(Judgement judgement) { static_cast<Judgement&>(*this) = std::move(judgement); }
};

class Load {
 public:
  Load() = default;
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  virtual ~Load() = default;

  /// Works for about `seconds`, at least one operation, and checks all of it. Memory that cannot be
  /// allocated and every other failure throws: nothing that did not run counts as checked. Not
  /// collective, unless the load is of collectives; may run on a thread of its own next to others.
  virtual LoadCount run(double seconds, std::vector<Mismatch>& found) = 0;

  /// After run() on every rank, collective: what only all ranks together can find. Returns how many
  /// more operations of run() were wrong.
  virtual std::uint64_t confer(const MpiSession& /*session*/, std::vector<Mismatch>& /*found*/) {
    return 0;
  }
};

}  // namespace shakedown::node
