// Training as a detector of wrong GPUs: each rank also computes the gradients of its neighbour's
// batch, and both results must have the same bits. A GPU is never compared with itself.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/program.hpp"
#include "common/record.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

// Who is wrong where ranks computed different gradients from one batch. Hashes in, verdicts out.

/// Of the gradients of one batch, by parameter.
using Hashes = std::vector<std::uint64_t>;

/// votes[shift][rank]: what `rank` computed of the batch of rank (rank + shift) % ranks, its own
/// for 0. Ranks are numbered among those that compute.
using Votes = std::vector<std::vector<Hashes>>;

/// What a second computation of the same gave; the later, the more it shows.
enum class Second {
  right,       // what the others computed: the error did not repeat
  other_bits,  // other wrong bits
  same_bits,   // the same wrong bits again
  hash,        // the hash of what was computed is wrong: the device's is not the host's
};

/// A batch whose gradients were not the same on every rank that computed them.
struct Dispute {
  int batch = 0;              // the rank whose batch it is
  std::vector<int> voters;    // that rank, the rank before it and, to decide, the one before that
  std::vector<Hashes> votes;  // of each voter
  std::optional<int> wrong;   // the rank that all others outvote; none: there is no majority
  Second second = Second::right;        // of the wrong rank
  std::vector<std::size_t> parameters;  // in which the votes differ
  /// The index of `wrong` among the voters; of the second where there is none.
  std::size_t accused() const;
};

/// Whether there is a batch of which not all ranks computed the same.
bool differ(const Votes& votes);

/// Two votes per batch or, where a third rank decides, three. `again` are the same computations a
/// second time, and `by_host` the hashes of these that the host computed from a copy.
std::vector<Dispute> disputes_of(const Votes& votes, const Votes& again, const Votes& by_host);

/// What verdicts name.
struct Names {
  std::vector<int> ranks;               // in the job, of each rank that computes
  std::vector<std::string> gpus;        // UUIDs; empty on the cpu
  std::vector<std::string> parameters;  // names
};
/// One per wrong rank, and one for the disputes without a majority.
std::vector<Verdict> verdicts_of(const std::vector<Dispute>& disputes, const Names& names);

const char* name_of(Second second);  // "same_bits"

class NeighbourCheck {
 public:
  /// Collective. Throws UsageError where ranks cannot be compared: the step is not deterministic,
  /// fewer than two compute, they have different weights or devices, or none has all weights.
  /// `fault`: a wrong bit of what its rank computes (product) or hashes (hash), for tests.
  explicit NeighbourCheck(Engine& engine, const std::optional<Fault>& fault = std::nullopt);

  /// The batches of which ranks compute different gradients, from the weights as they are: this
  /// rank's is the one that the network holds. Two extra passes, forward and backward; more where
  /// there is a difference. Leaves all that a step reads as it was: the batch, running statistics,
  /// metrics. Waits. Collective; the same on every rank.
  std::vector<Dispute> disputes();

  Names names() const;

 private:
  struct Computed {
    Hashes device;
    Hashes host;  // of a copy of the same gradients, if requested
  };
  enum class Look { first, second };

  void keep();
  void restore();
  void fetch_batch(int shift);
  Computed compute(int shift, Look look);
  /// Enqueues.
  void hash(int block);
  /// From a copy. Waits.
  void hash_on_host(int block, Hashes& hashes);
  /// Calls body with the index and the gradient of each parameter of the block.
  template <class Body>
  void for_gradients(int block, Body&& body) const;
  std::vector<Hashes> of_all(const Hashes& mine) const;
  bool errs(FaultKind kind) const { return fault_ && fault_->kind == kind; }
  std::size_t parameters() const { return engine_.model.network().table().parameters().size(); }

  Engine& engine_;
  std::optional<Fault> fault_;   // of this rank
  std::array<Buffer, 2> batch_;  // this rank's, while the network has another's
  Buffer statistics_;
  Buffer metrics_;
  Buffer hashes_;
};

/// Device memory of NeighbourCheck's copy of a batch.
std::size_t kept_batch_bytes(const NetworkSettings& shape, BackendKind kind);

}  // namespace shakedown::training
