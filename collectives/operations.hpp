// The operations that are measured: what each sends and receives, how it is called, and where every
// element of its result comes from. operations.cpp has the table.
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
  std::size_t call = 0;   // the call's argument, which nccl-tests prints
  std::size_t width = 1;  // bytes of an element

  std::size_t larger() const { return send > recv ? send : recv; }
};

/// One call. In place, the smaller view lies within the larger one, where NCCL requires it.
struct Call {
  ConstView send;
  View recv;
  Reduction reduction = Reduction::sum;
  int root = 0;
  Counts counts = {};
};

/// Elements [begin, begin + count) of a rank's recv come from `source` (a rank, or kAllRanks
/// combined), from `position` on in its send.
struct SourceRange {
  std::size_t begin = 0;
  std::size_t count = 0;
  int source = 0;
  std::size_t position = 0;
};

/// This rank's place among the others.
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
  /// Whether no rank can end before all have entered, because each receives from all.
  bool ends_together;
  bool power_of_two = false;  // of ranks; and operations cannot be grouped
  /// nccl-tests' factor from bytes per second to algbw, and from algbw to busbw.
  double (*alg_factor)(double ranks);
  double (*bus_factor)(double ranks);
  /// `elements`: of the larger buffer, as requested. Where the buffer is divided between ranks, a
  /// rank's part is rounded down to a multiple of `align` elements, and may become 0. `width`:
  /// bytes of an element.
  Counts (*counts)(std::size_t elements, std::size_t ranks, std::size_t align, std::size_t width);
  /// What this rank's recv holds afterwards; elements in no range are not written.
  std::vector<SourceRange> (*expected)(Counts counts, Seat seat);
  void (*run)(Communicator& communicator, const Call& call, Stream& stream);
};

/// In the order of the help.
const std::vector<Operation>& operations();
/// Throws UsageError naming --operation and the known names.
const Operation& find_operation(std::string_view name);

}  // namespace shakedown::collectives
