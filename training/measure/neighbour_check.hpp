// Training as a detector of wrong GPUs: each rank also computes the gradients of its neighbour's
// batch, and both results must have the same bits. A GPU is never compared with itself.
#pragma once

#include <array>
#include <vector>

#include "training/measure/neighbour_votes.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

class NeighbourCheck {
 public:
  /// Collective. Throws UsageError where ranks cannot be compared: the step is not deterministic,
  /// fewer than two compute, they have different weights or devices, or none has all weights.
  explicit NeighbourCheck(Engine& engine);
  NeighbourCheck(const NeighbourCheck&) = delete;
  NeighbourCheck& operator=(const NeighbourCheck&) = delete;
  virtual ~NeighbourCheck() = default;

  /// The batches of which ranks compute different gradients, from the weights as they are: this
  /// rank's is the one that the network holds. Two extra passes, forward and backward; more where
  /// there is a difference. Leaves all that a step reads as it was: the batch, running statistics,
  /// metrics. Waits. Collective; the same on every rank.
  std::vector<Dispute> disputes();

  Jury jury() const;

 protected:
  // Where tests inject faults.

  /// Backward has enqueued what computes these gradients, of one block.
  virtual void computed(View /*gradients*/) {}
  /// What the device hashed.
  virtual void hashed(Hashes& /*hashes*/) {}

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
  std::size_t parameters() const { return engine_.model.network().table().parameters().size(); }

  Engine& engine_;
  std::array<Buffer, 2> batch_;  // this rank's, while the network has another's
  Buffer statistics_;
  Buffer metrics_;
  Buffer hashes_;
};

/// Device memory of NeighbourCheck's copy of a batch.
std::size_t kept_batch_bytes(const NetworkSettings& shape, BackendKind kind);

}  // namespace shakedown::training
