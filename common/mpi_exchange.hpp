// Reductions of large buffers between ranks by messages of our own. Open MPI's non-blocking ones
// allocate a buffer anew each time and combine it only when all of it has come.
#pragma once

#include <span>
#include <vector>

#include "common/device.hpp"
#include "common/mpi_handle.hpp"
#include "common/types.hpp"

namespace shakedown {

/// Pairwise exchange (Thakur, Rabenseifner & Gropp 2005) in segments that fit the cache: a rank
/// receives its part of the buffer from every other one, and combines a segment while the next
/// ones travel. all_reduce sends each segment on to all others as soon as it is combined.
/// Inputs are combined in the order of ranks, so that the result depends on neither timing nor the
/// rank that computes it.
class MpiExchange {
 public:
  /// `comm` carries no other messages with this file's tags. Segments come into memory of
  /// `device`, which is kept from one exchange to the next.
  MpiExchange(MPI_Comm comm, Device& device);

  /// send.count = recv.count; in place, too. False past the deadline.
  bool all_reduce(ConstView send, View recv, Reduction op, MpiDeadline& deadline);
  /// send.count = size * recv.count; `recv` may be this rank's part of `send`.
  bool reduce_scatter(ConstView send, View recv, Reduction op, MpiDeadline& deadline);

  /// Whether it is as fast as Open MPI 4.1's algorithms, by measurement on 2 to 4 ranks of a host.
  bool suits_all_reduce(std::size_t bytes) const {
    return size_ == 1 || bytes >= (std::size_t{128} << 10) * static_cast<std::size_t>(size_);
  }
  bool suits_reduce_scatter(std::size_t bytes) const {
    return size_ == 1 || bytes >= std::size_t{64} << 10;
  }

 private:
  using Requests = std::vector<MPI_Request>;
  struct Job;

  bool run(const Job& job, MpiDeadline& deadline);
  void scatter(const Job& job, std::size_t segment);
  void combine(const Job& job, std::size_t segment) const;
  void share(const Job& job, std::size_t segment);
  void collect(const Job& job, std::size_t segment);
  View place_for(const Job& job, std::size_t segment, int from) const;

  MPI_Comm comm_;
  Device& device_;
  int rank_ = 0;
  int size_ = 1;
  std::size_t segment_bytes_ = 0;
  Buffer received_;                // [slot][rank] segments of this rank's part
  std::vector<Requests> coming_;   // [slot] of this rank's part
  std::vector<Requests> leaving_;  // [slot] of the others' parts
  Requests shared_;                // what has been combined, both ways
};

// Reductions of arrays in host memory: the arithmetic of collectives on the CPU.

/// to[i] = `op` over inputs[0][i], inputs[1][i], ... in this order; `avg` divides the sum by the
/// number of inputs. Each input has to.count elements of to.type, and may be `to` itself. float16
/// and bfloat16 are computed in float32 and rounded once; averages of integers truncate toward
/// zero. Throws InternalError for 8-bit floating-point types.
void reduce_elements(Reduction op, std::span<const void* const> inputs, View to);

/// x[i] = x[i] / n, as the `avg` of reduce_elements divides.
void divide_elements(View x, int n);

}  // namespace shakedown
