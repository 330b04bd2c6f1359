// The operations that are measured: what each sends and receives, how it is called, and where every
// element of its result comes from. One file each in operations/, one table.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "common/communicator.hpp"

namespace shakedown::collectives {

/// Elements of one rank's buffers.
struct Counts {
  std::size_t send = 0;
  std::size_t recv = 0;
  std::size_t call = 0;  // what the call is given, and nccl-tests prints

  std::size_t larger() const { return send > recv ? send : recv; }
};

/// One call. In place the smaller of the views lies within the larger, where NCCL wants it.
struct Call {
  ConstView send;
  View recv;
  Reduction reduction = Reduction::sum;
  int root = 0;
};

/// Elements [begin, begin + count) of a rank's recv are those of `source` (a rank, or kAllRanks
/// combined) at positions from `position` on in its send.
struct SourceRange {
  std::size_t begin = 0;
  std::size_t count = 0;
  int source = 0;
  std::size_t position = 0;
};

/// Where this rank stands.
struct Seat {
  int rank = 0;
  int ranks = 1;
  int root = 0;
};

struct Operation {
  const char* name;          // "all_to_all"
  const char* program_name;  // nccl-tests': "alltoall_perf"
  bool reduces;
  bool rooted;
  bool in_place;  // whether it has a form with one buffer
  /// Whether no rank can end before all have entered, as each receives something of all.
  bool ends_together;
  /// nccl-tests' factor from algbw to busbw.
  double (*bus_factor)(double ranks);
  /// `elements`: of the larger buffer, as asked for; a rank's part is rounded down to a multiple of
  /// `align` elements where the buffer is divided between ranks, and may become 0.
  Counts (*counts)(std::size_t elements, std::size_t ranks, std::size_t align);
  void (*run)(Communicator& communicator, const Call& call, Stream& stream);
  /// What this rank's recv holds afterwards; elements in no segment are not written.
  std::vector<SourceRange> (*expected)(Counts counts, Seat seat);
};

/// In the order of the help.
const std::vector<Operation>& operations();
/// Throws UsageError naming --operation and the known names.
const Operation& find_operation(std::string_view name);

// ---- what operations share --------------------------------------------------------------------

inline double all_but_one(double ranks) { return (ranks - 1) / ranks; }
inline double one(double) { return 1; }

inline Counts undivided(std::size_t elements, std::size_t, std::size_t) {
  return {elements, elements, elements};
}
inline std::size_t part_of(std::size_t elements, std::size_t ranks, std::size_t align) {
  return elements / ranks / align * align;
}
/// A rank sends its part and receives everybody's, or the other way round.
inline Counts gathering(std::size_t elements, std::size_t ranks, std::size_t align) {
  const std::size_t part = part_of(elements, ranks, align);
  return {part, part * ranks, part};
}
inline Counts scattering(std::size_t elements, std::size_t ranks, std::size_t align) {
  const std::size_t part = part_of(elements, ranks, align);
  return {part * ranks, part, part};
}
/// The parts of all ranks at once, in rank order: what arrives when everybody's lands here.
inline std::vector<SourceRange> parts_of_all(std::size_t part, int ranks, std::size_t position) {
  std::vector<SourceRange> segments;
  segments.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r)
    segments.push_back({static_cast<std::size_t>(r) * part, part, r, position});
  return segments;
}

}  // namespace shakedown::collectives
