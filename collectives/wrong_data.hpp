// What went wrong with a result: fetches its wrong regions from the device and decodes them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/operations.hpp"
#include "collectives/verifier.hpp"
#include "common/device.hpp"
#include "common/operands/decoder.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {

/// What a rank received, and what it should be.
struct Received {
  View data;       // the whole buffer
  ConstView sent;  // this rank's, from position 0 on; in place they overlap
  Operands operands;
  std::vector<SourceRange> ranges;  // of `data`
  int rank = 0;
  std::uint64_t extent = 0;  // positions below it exist
  std::uint64_t part = 0;    // elements of a rank's part; 0: not divided
  operands::Earlier earlier;
};

/// Elements [begin, begin + count) of what was received, all from `range`. Waits for the copy.
operands::Region fetch(const Received& received, const SourceRange& range, std::size_t begin,
                       std::size_t count, Device& device, Stream& stream);

/// Regions by class. Sums over ranks and iterations.
class Diagnosis {
 public:
  void add(const operands::Decoded& region);
  void add(const Diagnosis& other);

  std::uint64_t regions() const;
  std::uint64_t regions(operands::WrongData kind) const { return row(kind).regions; }
  /// The first region of the class that most of them have; a known class before unknown.
  const operands::Decoded& foremost() const;

 private:
  struct Row {
    std::uint64_t regions = 0;
    operands::Decoded first;
  };
  const Row& row(operands::WrongData kind) const { return rows_[static_cast<std::size_t>(kind)]; }

  std::array<Row, operands::kWrongData> rows_;
};

/// Of at most `most_regions`, from the first wrong element to the last.
Diagnosis diagnose(const Received& received, const Mismatches& mismatches, int most_regions,
                   Device& device, Stream& stream);

/// "stale result of 1 iteration before in 3 of 4 regions; ordering: ...".
std::string text_of(const Diagnosis& diagnosis);

/// wrong_stale, wrong_torn and so on: regions, and the figures of the foremost.
Json fields_of(const Diagnosis& diagnosis);

}  // namespace shakedown::collectives
