// Who is wrong: the vote over the hashes that several GPUs made of the same tile of the same
// product. Nobody is compared with its own first output alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

struct Ruling {
  std::vector<int> wrong;              // indices of the jurors; none: all agree, or undecided
  std::optional<std::uint64_t> right;  // the hash that the others have
  std::string undecided;               // why the vote decides nothing; empty: it did
  bool agreed() const { return wrong.empty() && undecided.empty(); }
};

/// Jurors are GPUs of one model with one algorithm, whose bits must be the same. A juror whose
/// products of one batch differ among themselves is unsteady, and wrong where others are steady; of
/// the steady ones those are wrong that a majority of all jurors contradicts. Of two steady jurors
/// that differ, or where there is no such majority, the vote decides nothing. A juror on its own
/// can only be found unsteady.
Ruling vote(std::span<const TileRecord> jurors);

/// What all ranks' rulings on the tiles of one batch come to.
struct TileFinding {
  std::int64_t tile = 0;
  Ruling ruling;
};
/// `records` is by juror, each of all tiles. Only tiles that are not agreed on.
std::vector<TileFinding> vote_by_tile(std::span<const std::vector<TileRecord>> records);

/// Bits of a batch that are equal on two GPUs where all tiles' records are, but for once in 2^64.
struct Digest {
  std::uint64_t hash = 0;
  std::uint64_t differing = 0;  // products that differed from the first in the worst tile
  bool operator==(const Digest&) const = default;
};
Digest digest_of(std::span<const TileRecord> records);

// Where an error comes from: the same work again, a hundred times each, by the processor and at the
// address of the error, by other processors (SMs) there, and by that processor elsewhere.

/// Work that was wrong once, and can be done again.
class Retrial {
 public:
  virtual ~Retrial() = default;
  /// Whether it is wrong by this processor at this address: 0 is the error's own, others have the
  /// numbers from 1 on. None: the work did not get to the processor.
  virtual std::optional<bool> wrong(int processor, int address) = 0;
};

struct Attempts {
  int tried = 0, wrong = 0;
  bool operator==(const Attempts&) const = default;
};

struct Evidence {
  Attempts same;              // processor and address of the error
  Attempts other_processors;  // at its address
  Attempts other_addresses;   // by its processor
  Attempts other_gpus;        // of two others, where there are any
};

/// `processors` may contain `processor`; `addresses`: how many others there are. Each of the three
/// is tried `repeats` times, and what does not get there is not counted as tried.
Evidence collect_evidence(Retrial& retrial, int processor, std::span<const int> processors,
                          int addresses, int repeats = 100);

enum class Culprit {
  processor,  // this SM, wherever its data lies
  address,    // this address, whichever SM uses it
  pair,       // only this SM at this address
  gpu,        // all SMs and addresses of this GPU
  program,    // other GPUs too: not this GPU's matter
  transient,  // none of them, again
  unknown,    // could not be tried
};

struct Placing {
  Culprit culprit = Culprit::unknown;
  Outcome outcome = Outcome::inconclusive;
  std::optional<Class> class_;
  std::string cause;   // "sticks to SM 17: wrong in 100 of 100 there, 0 of 100 on other SMs, ..."
  std::string action;  // as a verdict's
};

/// Pure. `unit` names a processor: "SM" or "core". An error is seen again where it occurs at a
/// tenth of its highest rate at least. A transient error is one all the same: it fails.
Placing place_error(const Evidence& evidence, const std::string& unit, int processor);

}  // namespace shakedown::node
