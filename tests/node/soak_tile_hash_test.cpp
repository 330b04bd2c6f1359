// Hashes of tiles and known words: host and devices agree, and one bit is seen.
#include "common/random.hpp"
#include "launch/node/soak/known_words.hpp"
#include "launch/node/soak/tile_hash.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {

TEST_CASE("host and device hash a tile alike, and a flipped bit changes one tile's hash",
          "[soak][kernels]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const DataType type = GENERATE(DataType::float16, DataType::float32, DataType::float64);
  CAPTURE(name_of(kind), name_of(type));
  const TileGrid grid{2 * kTileEdge, 3 * kTileEdge, static_cast<int>(size_of(type))};
  REQUIRE(grid.tiles() == 6);
  std::vector<std::byte> matrix(static_cast<std::size_t>(grid.rows * grid.row_bytes()));
  Random random(3);
  for (std::byte& byte : matrix) byte = static_cast<std::byte>(random.next());
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const auto hasher = make_tile_hasher(kind);
  const Buffer c = test::to_device(*device, *stream, matrix);
  const Buffer records = test::to_device(*device, *stream, std::vector<TileRecord>(6));
  const auto hash = [&](std::uint32_t product) {
    hasher->hash(c.view(type), grid, product, static_cast<TileRecord*>(records.data()), *stream);
    return download<TileRecord>(*device, *stream, records.data(), 6);
  };
  const std::vector<TileRecord> first = hash(0);
  for (std::int64_t tile = 0; tile < 6; ++tile) {
    CHECK(first[static_cast<std::size_t>(tile)].first == hash_of_tile(matrix.data(), grid, tile));
    CHECK(first[static_cast<std::size_t>(tile)].first ==
          hash_of_tile(read_tile(*device, c.view(type), grid, tile, *stream)));
  }
  CHECK(hash(1)[4].differing == 0);
  const auto at = static_cast<std::size_t>(grid.begin(4) + 5 * grid.row_bytes() + 17);
  matrix[at] ^= std::byte{4};
  upload<std::byte>(*device, *stream, c.data(), matrix);
  const std::vector<TileRecord> flipped = hash(2);
  for (std::size_t tile = 0; tile < 6; ++tile) {
    CHECK(flipped[tile].differing == (tile == 4 ? 1 : 0));
    CHECK(flipped[tile].first == first[tile].first);
  }
  CHECK(flipped[4].product == 2);
  CHECK(flipped[4].other == hash_of_tile(matrix.data(), grid, 4));
}

TEST_CASE("words in other places have another hash", "[soak]") {
  CHECK(hash_of_word(1, 0) + hash_of_word(2, 1) != hash_of_word(2, 0) + hash_of_word(1, 1));
}

TEST_CASE("known words are checked to the bit, and so are their sums", "[soak][kernels]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const auto kernels = make_word_kernels(kind);
  constexpr std::size_t kCount = 1000;
  const Buffer memory(*device, kCount * sizeof(std::uint64_t));
  const View words = memory.view(DataType::uint64);
  const auto check = [&](const KnownWords& known) {
    const Buffer wrong = test::to_device(*device, *stream, std::vector<WordErrors>(1));
    kernels->check(words, known, 30, static_cast<WordErrors*>(wrong.data()), *stream);
    return download<WordErrors>(*device, *stream, wrong.data(), 1).front();
  };
  std::vector<std::uint64_t> sum(kCount);
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    kernels->fill(words, {9, 1, rank, 5}, *stream);
    CHECK(check({9, 1, rank, 5}).count == 0);
    const auto host = download<std::uint64_t>(*device, *stream, words.data, kCount);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += host[i];
  }
  upload<std::uint64_t>(*device, *stream, words.data, sum);
  CHECK(check({9, 3, 3, 5}).count == 0);
  sum[123] ^= 1U << 7;
  upload<std::uint64_t>(*device, *stream, words.data, sum);
  const WordErrors wrong = check({9, 3, 3, 5});
  CHECK(wrong.count == 1);
  CHECK(wrong.first == 153);
}

}  // namespace shakedown::node
