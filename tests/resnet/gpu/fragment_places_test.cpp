// Where the threads of a product on wgmma find their rows and columns
// (resnet/gpu/fragment_places.hpp).
#include "resnet/gpu/fragment_places.hpp"

#include <map>

#include "tests/catch.hpp"

namespace shakedown {
namespace {

/// Where the hardware has accumulator i of a warpgroup's thread in a product of 64 rows (PTX ISA,
/// wgmma's D fragment): its row, and its column as the product has them.
unsigned hardware_row(unsigned thread, unsigned i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
unsigned hardware_column(unsigned thread, unsigned i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

}  // namespace

TEST_CASE("a thread's adjacent columns are those it has accumulators of", "[gram]") {
  const unsigned columns = GENERATE(64U, 128U);
  std::map<std::pair<unsigned, unsigned>, int> seen;  // row and column
  for (unsigned thread = 0; thread < 128; ++thread)
    for (unsigned q = 0; q < columns / 32; ++q)
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned v = 0; v < 8; ++v) {
          const unsigned row = gpu::fragment_row(thread, half);
          const unsigned column = q * 32 + gpu::fragment_column(thread) + v;
          const unsigned i = gpu::accumulator_of(q, half, v);
          REQUIRE(i < columns / 2);
          REQUIRE(hardware_row(thread, i) == row);
          REQUIRE(hardware_column(thread, i) == gpu::placed_column(column));
          ++seen[{row, column}];
        }
  CHECK(seen.size() == std::size_t{64} * columns);  // each once: there are as many accumulators
}

TEST_CASE("placed columns are a permutation within each 32", "[gram]") {
  std::map<unsigned, int> places;
  for (unsigned column = 0; column < 128; ++column) {
    CHECK(gpu::placed_column(column) / 32 == column / 32);
    ++places[gpu::placed_column(column)];
  }
  CHECK(places.size() == 128);
}

}  // namespace shakedown
