// The data that a transport with a fault of a class would leave: from the inputs of all ranks,
// combined one after the other in their type, without what decodes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/operands/decoder.hpp"

namespace shakedown::collectives {

/// Two elements combined, and rounded, in their type; an average's are added.
std::uint64_t combined_in_type(DataType type, Reduction reduction, std::uint64_t a,
                               std::uint64_t b);

struct Damage {
  operands::WrongData kind = operands::WrongData::unknown;
  int rank = 0;                    // whose addend is wrong, or whose data came instead
  std::int64_t offset_bytes = 64;  // of misrouted data
  int age = 1;                     // of stale data
  std::size_t torn_bytes = 64;  // in each 128-byte line the last ones are of an earlier iteration
  int bit = 4;                  // that is flipped, in the first element
};

/// Whether such a fault can be: a missing addend of data that are moved cannot.
bool applies(const Damage& damage, const operands::Operands& operands);

/// Damages elements [first, first + count) of the region.
void apply(const Damage& damage, const operands::Operands& operands, std::size_t first,
           std::size_t count, operands::Region& region);

}  // namespace shakedown::collectives
