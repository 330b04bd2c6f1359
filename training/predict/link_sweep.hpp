// What the job's own exchanges take, by size: to fit a model of its links to.
#pragma once

#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "training/predict/link_cost.hpp"

namespace shakedown::training {

struct MeasuredLinks {
  std::vector<TransferPoint> ring;  // all-reduces of so many bytes
  std::vector<TransferPoint> star;  // every other rank sends so many bytes to rank 0
};

/// Of a gradient buffer of `largest_bytes` and of parts of it, down to a thirty-second: what
/// buckets are. Seconds of one of several in a row, of the slowest rank; the median of some
/// repetitions. Empty on one rank, and where a rank has no memory for it. Every rank calls it; the
/// same on all.
MeasuredLinks measure_links(Backend& backend, DataType type, std::size_t largest_bytes,
                            const MpiSession& session);

}  // namespace shakedown::training
