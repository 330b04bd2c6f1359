// Hashes of tiles: host and devices agree, and one bit is seen.
#include <algorithm>
#include <cstring>

#include "common/hash.hpp"
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

TEST_CASE("a step of a hash's chain can be undone: another word never has the same", "[soak]") {
  constexpr std::uint64_t kFactor = 0xFF51AFD7ED558CCDU;
  std::uint64_t inverse = kFactor;  // right in the lowest 3 bits; each step doubles them
  for (int bits = 3; bits < 64; bits *= 2) inverse *= 2 - kFactor * inverse;
  Random random(5);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t chain = random.next();
    const std::uint64_t word = random.next();
    const std::uint64_t folded = chained(chain, word) * inverse;
    CHECK((folded ^ (folded >> 35) ^ chain) == word);
  }
}

/// A tile of elements of 2 bytes in which errors are made.
class HashedTile {
 public:
  static constexpr std::size_t kWordsPerRow = kTileEdge * 2 / 8;
  static constexpr std::size_t kWords = kTileEdge * kWordsPerRow;

  explicit HashedTile(std::uint64_t range) : words_(kWords) {
    Random random(7);
    for (std::uint64_t& word : words_) word = range == 0 ? random.next() : random.below(range);
    right_ = hash(words_);
  }
  /// Whether the hash differs once `damage` has changed the words.
  template <class Damage>
  bool finds(Damage&& damage) const {
    std::vector<std::uint64_t> words = words_;
    damage(words);
    return words == words_ || hash(words) != right_;
  }
  bool finds_flips(std::uint64_t bits, std::initializer_list<std::size_t> where) const {
    return finds([&](auto& words) {
      for (const std::size_t at : where) words[at] ^= bits;
    });
  }

 private:
  static std::uint64_t hash(const std::vector<std::uint64_t>& words) {
    std::vector<std::byte> bytes(words.size() * 8);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return hash_of_tile(bytes);
  }
  std::vector<std::uint64_t> words_;
  std::uint64_t right_ = 0;
};

TEST_CASE("equal errors in several words of a tile do not cancel in its hash", "[soak]") {
  const HashedTile tile(GENERATE(0, 16, 1));      // full entropy, small integers, zeros
  constexpr std::size_t kAt = 1234;               // the first word of a pair
  constexpr std::size_t kChain = 2 * kHashLanes;  // to the next pair of the chain
  for (int bit = 0; bit < 64; ++bit) {
    CAPTURE(bit);
    const std::uint64_t one = std::uint64_t{1} << bit;
    CHECK(tile.finds_flips(one, {kAt}));
    for (const std::size_t other : {kAt + 1, kAt + 2, kAt + HashedTile::kWordsPerRow, kAt + kChain,
                                    kAt + kChain + 1, kAt + 2 * kChain})
      CHECK(tile.finds_flips(one, {kAt, other}));
    CHECK(tile.finds_flips(one, {kAt, kAt + 1, kAt + kChain, kAt + kChain + 1}));
  }
  for (int bit = 0; bit < 16; ++bit) {  // of each element, as of a sign
    const std::uint64_t each = 0x0001000100010001U << bit;
    CHECK(tile.finds_flips(each, {kAt, kAt + 1}));
    CHECK(tile.finds([&](auto& words) {
      for (std::uint64_t& word : words) word ^= each;
    }));
  }
}

TEST_CASE("words in other places of a tile are another hash", "[soak]") {
  const HashedTile tile(GENERATE(0, 16));
  constexpr std::size_t kRow = HashedTile::kWordsPerRow;
  for (std::size_t other = 1; other < HashedTile::kWords; other += 37)
    CHECK(tile.finds([&](auto& words) { std::swap(words[0], words[other]); }));
  for (std::size_t row = 1; row < kTileEdge; ++row)
    CHECK(tile.finds([&](auto& words) {
      std::swap_ranges(words.begin(), words.begin() + kRow,
                       words.begin() + static_cast<std::ptrdiff_t>(row * kRow));
    }));
  for (const std::size_t by : {std::size_t{1}, std::size_t{2}, kRow, 16 * kRow})  // shifted
    CHECK(tile.finds([&](auto& words) {
      std::rotate(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(by), words.end());
    }));
}

}  // namespace shakedown::node
