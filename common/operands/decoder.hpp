// What a wrong result is: from which rank, iteration or position its elements came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/operands/operands.hpp"

namespace shakedown::operands {

enum class WrongData {
  stale,           // the result of an earlier iteration
  torn,            // pieces of 128-byte lines, each of an earlier content
  misrouted,       // another position's result, or another rank's data
  missing_addend,  // one rank's contribution is not in the result
  doubled_addend,  // is in it twice
  stale_addend,    // is that of the iteration before
  unwritten,       // what was there before
  bit_flip,        // one bit of one element
  unknown,
};
inline constexpr int kWrongData = static_cast<int>(WrongData::unknown) + 1;

const char* name_of(WrongData kind);    // "stale"
const char* cause_of(WrongData kind);   // "ordering: ..."
const char* action_of(WrongData kind);  // what to do next
/// In the order of the enumeration.
std::vector<WrongData> all_wrong_data();

/// From where an earlier result is: `iterations` before, `elements` of position before, or both.
struct Earlier {
  std::uint64_t iterations = 1;
  std::uint64_t elements = 0;
};

/// Consecutive elements of a result, some of them wrong.
struct Region {
  int source = kAllRanks;
  std::uint64_t position = 0;         // of the first element
  std::vector<std::uint64_t> found;   // bits
  std::vector<std::uint64_t> before;  // what was there before the operation; empty: poison (ones)
  int line_unit = 0;         // the 16-byte unit of a 128-byte line at which it begins; -1: none
  std::uint64_t extent = 0;  // positions below it may have been taken for these
  std::uint64_t part = 0;    // elements of a rank's part of the buffer; 0: not divided
  Earlier earlier = {};
};

/// What a region's wrong elements are. Figures are of classes that have them.
struct Decoded {
  WrongData kind = WrongData::unknown;
  int from_rank = -1;
  std::int64_t from_offset = 0;  // bytes
  int age = 0;                   // iterations
  int torn_bytes = 0;            // size of the pieces
  /// log2 of the chance that data of no class are taken for this one; 0: not named, or one bit.
  double chance_log2 = 0;
};

/// "stale: of 1 iteration before", "missing addend of rank 3".
std::string text_of(const Decoded& decoded);

/// Nothing where no element is wrong. A class is named if it alone gives every wrong element and
/// changes no right one of their 16-byte units, and the wrong elements are worth the number of all
/// hypotheses and 2^20 more.
std::optional<Decoded> decode(const Operands& operands, const Region& region);

}  // namespace shakedown::operands
