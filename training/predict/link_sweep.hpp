// Times of the job's own exchanges, by size. The model of its links is fitted to them.
#pragma once

#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "training/predict/link_cost.hpp"

namespace shakedown::training {

struct MeasuredLinks {
  std::vector<TransferPoint> ring;  // all-reduces of `bytes` bytes
  std::vector<TransferPoint> star;  // every other rank sends `bytes` bytes to rank 0
  double average_s_per_byte = 0;    // rank 0 averages what all ranks sent: per byte of one rank
};

/// Measures exchanges of a gradient buffer of `largest_bytes` and of parts of it, down to a
/// thirty-second: the sizes of buckets. Between two exchanges a step computes, which leaves none of
/// the gradients in the caches; so before each exchange every rank touches `step_bytes` of other
/// memory. Medians; empty for one rank, and where a rank has no memory for it. Every rank calls it;
/// the same on all.
MeasuredLinks measure_links(Backend& backend, DataType type, std::size_t largest_bytes,
                            std::size_t step_bytes, const MpiSession& session);

}  // namespace shakedown::training
