// The state of a training on all ranks, copied to host memory at a step boundary, and put back.
#pragma once

#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

class Snapshot {
 public:
  /// Allocates pinned memory: on rank 0 for all weights and all that the optimiser has for them,
  /// elsewhere for what this rank alone updates. Collective.
  Snapshot(Engine& engine, const MpiSession& session);

  /// On rank 0, of all tensors.
  std::uint64_t bytes() const;

  /// Copies the state as it is once all enqueued steps are done, with this rank's input of the
  /// epoch. Rank 0 then has every rank's. Returns the milliseconds for which the device had no step
  /// to compute. Collective.
  double take(const InputTimes& input = {});

  // On rank 0. Any thread may call them until the next take().

  std::vector<Tensor> tensors() const;
  /// The state of the ranks; position and facts are left for the caller.
  CheckpointState state() const;

 private:
  /// The weights, and what the optimiser has for each of them.
  struct Array {
    std::string name;                    // of a StateBuffer; empty: the weights
    const FlatBuffer* device = nullptr;  // null: the weights
    FlatBuffer host;
  };

  View on_device(const Array& array, Range range) const;
  void gather_arrays();
  std::vector<float> shared_statistics() const;
  int rank() const { return session_.rank(); }

  Engine& engine_;
  const MpiSession& session_;
  std::vector<std::vector<Range>> parts_;  // by rank: what rank 0 has from it
  std::vector<Array> arrays_;
  Buffer own_statistics_;
  Buffer statistics_;  // rank 0: all ranks'
  std::vector<RankNumbers> numbers_;
  std::int64_t batches_tracked_ = 0;
};

/// Gives every rank the state of rank 0's `checkpoint`, which others need not have; `file` is where
/// it is from. Ranks of the same number have their own numbers and running statistics back; with
/// another number of ranks they have those of the first rank that computed. Returns this rank's
/// input of the epoch so far. Collective.
InputTimes restore(Engine& engine, const MpiSession& session, const CheckpointState& state,
                   const std::vector<Tensor>& tensors, const std::string& file);

}  // namespace shakedown::training
