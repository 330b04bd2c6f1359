// A soak's schedule, the CPU as a juror of its products, and the hashes of their tiles.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "common/hash.hpp"
#include "common/nvml.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/product_load.hpp"
#include "launch/node/soak/schedule.hpp"
#include "launch/node/soak/tile_hash.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {

TEST_CASE("a cycle has every load on its own, a square wave and a mixture", "[soak]") {
  const std::vector<ProductType> types{ProductType::fp32, ProductType::bf16};
  const auto names = [&](const std::vector<std::string>& shapes,
                         const std::vector<std::string>& loads, bool alone, int cycle) {
    std::vector<std::string> found;
    for (const Phase& phase : phases_of_cycle(shapes, loads, types, alone, cycle))
      found.push_back(phase.name());
    return found;
  };
  const Texts cycle{"steady products bf16",
                    "steady products fp32",
                    "steady copies",
                    "steady collectives",
                    "square products fp32 2 Hz",
                    "mixed products bf16, copies, collectives"};
  Texts first{"sweep products bf16", "sweep products fp32", "sweep copies", "sweep collectives"};
  CHECK(names({"steady", "square", "mixed"}, {"products", "copies", "collectives"}, false, 0) ==
        cycle);
  CHECK(names({"sweep"}, {"products", "copies", "collectives"}, false, 7) == first);
  first.insert(first.end(), cycle.begin(), cycle.end());
  CHECK(names({"all"}, {"products", "copies", "collectives"}, false, 0) == first);
  CHECK(names({"all"}, {"products"}, false, 2) ==
        Texts{"steady products bf16", "steady products fp32", "square products fp32 10 Hz"});
  CHECK(names({"square"}, {"all"}, true, 1) == Texts{"square products bf16 0.5 Hz"});
  CHECK(names({"mixed"}, {"collectives"}, true, 0).empty());
  CHECK(names({"steady"}, {"memory", "copies"}, true, 0) ==
        Texts{"steady memory", "steady copies"});
  CHECK(names({"all"}, {"memory"}, true, 1) == Texts{"steady memory"});
  auto square = phases_of_cycle({"square"}, {"products"}, types, true, 1);
  fit_pulses(square, 2);  // whose share is 2
  CHECK(square[0].pulse_hertz == 0.5);
  fit_pulses(square, 0.8);  // a window of two periods
  CHECK(square[0].name() == "square products bf16 1.25 Hz");
}

TEST_CASE("products have 83 % of a lone GPU's time, in windows of two seconds at most", "[soak]") {
  const auto cycle = phases_of_cycle({"all"}, {"all"}, all_product_types(), true, 2);
  double all = 0;
  double products = 0;
  for (const Phase& phase : cycle) {
    all += phase.share;
    if (phase.has(LoadKind::products)) products += phase.share;
  }
  CHECK(products / all == Approx(0.833).margin(0.001));
  CHECK(window_seconds(900, cycle) == 2);
  CHECK(window_seconds(10, cycle) == Approx(10 / (2 * all)));
  for (const Phase& phase : phases_of_cycle({"sweep"}, {"all"}, all_product_types(), true, 0))
    CHECK(phase.share <= (phase.has(LoadKind::products) ? 0 : 0.15));
  CHECK(window_seconds(1, phases_of_cycle({"sweep"}, {"products"}, all_product_types(), true, 0)) ==
        2);
}

TEST_CASE("one GPU alone compares each batch of integers with the known answer", "[soak]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  if (test::session().world_size() > 1) return;
  CAPTURE(name_of(kind));
  ProductSettings settings;
  settings.spec = {ProductType::fp32, 128, 128, 32};
  const auto wrong_from = [&](int batch, LoadCount& count) {
    settings.load.fault = FaultKind::product;
    settings.first_faulty = batch;
    ProductLoad load(settings, *device, test::session());
    std::vector<Mismatch> found;
    count = load.run(0, found);
    count += load.confer(test::session(), found);
    return found;
  };
  LoadCount count;
  const auto found = wrong_from(8, count);
  REQUIRE(!found.empty());
  CHECK(found[0].operation == 8);
  CHECK(found[0].outcome == Outcome::fail);
  CHECK(count.wrong > 0);
  CHECK(wrong_from(ProductLoad::kBatches, count).empty());
  CHECK(count.checked >= 16);
  CHECK(count.self_compared > 0);
  CHECK(count.self_compared < count.checked);
}

TEST_CASE("the matrices of a soak's product have as many bytes each", "[soak]") {
  for (const ProductType type : all_product_types()) {
    CAPTURE(name_of(type));
    const ProductSpec spec = product_spec(type, 8192);
    CHECK(spec.m * spec.k * static_cast<std::int64_t>(size_of(operand_type(type))) ==
          spec.m * spec.n * static_cast<std::int64_t>(size_of(result_type(type))));
    check_exact(spec);  // at the largest size that --size allows
  }
}

TEST_CASE("a tile of fp8 products has a bound at every size", "[soak]") {
  const ProductSpec spec{ProductType::fp8, 128, 128, 16384};
  const HostTile tile = host_tile(spec, Operands::full_entropy, 3, 0);
  const double deviation = 4.0 / 3 * std::sqrt(16384.0);  // of C's elements
  for (const double bound : tile.bound) CHECK(bound < 1.5 * deviation);
}

TEST_CASE("the CPU's tile is what the device computes, and wrong bits lie beyond it", "[soak]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  for (const ProductType type : product_types(*device)) {
    CAPTURE(name_of(kind), name_of(type));
    const ProductSpec spec{type, 256, 128, 256};
    ProductRig rig(spec, *device, "", 1, std::nullopt);
    rig.fill(Operands::integers, 5);
    rig.run_checked(0, 0);
    const HostTile exact = host_tile(spec, Operands::integers, 5, 1);
    CHECK(rig.record(0, 1).first == hash_of_tile(encoded(exact, result_type(type))));
    CHECK(beyond_bound(exact, rig.tile_bytes(1), result_type(type)).empty());
    rig.fill(Operands::full_entropy, 5);
    rig.run_checked(0, 0);
    const HostTile near = host_tile(spec, Operands::full_entropy, 5, 1);
    auto bytes = rig.tile_bytes(1);
    CHECK(beyond_bound(near, bytes, result_type(type)).empty());
    // The second element becomes huge: its exponent's bits are set, or one of an integer's flips.
    auto& top = bytes[2 * size_of(result_type(type)) - 1];
    top = type == ProductType::int8 ? top ^ std::byte{0x40} : top | std::byte{0x7F};
    CHECK(beyond_bound(near, bytes, result_type(type)) == std::vector<std::size_t>{1});
  }
}

// Square waves and the comparison of rates, on a device that keeps time of its own.

namespace {

/// Host and device in virtual time.
struct Machine {
  double now = 100.3;  // the host's clock
  double busy = 0;     // until when the device works
  void enqueue(double seconds) {
    now += 1e-5;
    busy = std::max(busy, now) + seconds;
  }
  void wait(double until) { now = std::max(now, until); }
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(Machine& machine) : machine_(machine) {}
  void wait(const Event&) override {}
  void synchronize() override { machine_.wait(machine_.busy); }

 private:
  Machine& machine_;
};

class FakeEvent final : public Event {
 public:
  explicit FakeEvent(Machine& machine) : machine_(machine) {}
  void record(Stream&) override { at_ = std::max(machine_.busy, machine_.now); }
  bool done() const override { return at_ <= machine_.now; }
  void synchronize() const override { machine_.wait(at_); }
  double milliseconds_since(const Event& start) const override {
    return 1e3 * (at_ - dynamic_cast<const FakeEvent&>(start).at_);
  }

 private:
  Machine& machine_;
  double at_ = 0;
};

struct Rig {
  Machine machine;
  FakeStream stream{machine};
  Pace pace{stream,
            {std::make_unique<FakeEvent>(machine), std::make_unique<FakeEvent>(machine),
             std::make_unique<FakeEvent>(machine)},
            {[this] { return machine.now; }, [this](double until) { machine.wait(until); }}};
};

bool never() { return false; }

}  // namespace

TEST_CASE("a square wave is on for half of each period, whatever a product takes", "[soak]") {
  const double hertz = GENERATE(0.5, 1.0, 2.0, 5.0, 10.0);
  const double product_s = GENERATE(2e-4, 1.7e-3, 22e-3);
  constexpr double kWindow = 4.2;
  constexpr int kBatches = 16;
  CAPTURE(hertz, product_s);
  Rig rig;
  std::map<int, int> products;  // by pulse
  const double begin = rig.machine.now;
  rig.pace.begin(hertz);
  for (int batch = 1; batch <= kBatches; ++batch) {
    rig.machine.enqueue(1e-3);  // the operands
    const auto chunks = rig.pace.run(kWindow * batch / kBatches, never, [&](int, auto count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        ++products[static_cast<int>((rig.machine.now - begin + 1e-6) * hertz)];
        rig.machine.enqueue(product_s);
      }
    });
    CHECK(!chunks.empty());
  }
  rig.stream.synchronize();
  CHECK(rig.machine.now - begin <= 1.5 * kWindow);
  const int periods = static_cast<int>(kWindow * hertz);
  for (int period = 0; period < periods; ++period) {
    CAPTURE(period);
    const double on = products[period] * product_s * hertz;  // share of the period
    CHECK(on > 0.4);
    CHECK(on < 0.76);
  }
}

TEST_CASE("a steady load is enqueued in chunks of some milliseconds", "[soak]") {
  Rig rig;
  rig.pace.begin(0);
  std::uint32_t products = 0;
  const auto chunks = rig.pace.run(2, never, [&](int, std::uint32_t count) {
    products += count;
    for (std::uint32_t i = 0; i < count; ++i) rig.machine.enqueue(1e-3);
  });
  CHECK(chunks.back().operations == 8);
  CHECK(products == Approx(2000).epsilon(0.02));
  CHECK(chunks[chunks.size() / 2].seconds == Approx(8e-3));
  // Nothing is known of a chunk before which the queue was empty.
  for (int i = 0; i < 20; ++i) {
    rig.stream.synchronize();
    for (const Chunk& chunk : rig.pace.run(0, never, [&](int, std::uint32_t count) {
           for (std::uint32_t j = 0; j < count; ++j) rig.machine.enqueue(1e-3);
         }))
      CHECK(chunk.operations == 8);
  }
}

TEST_CASE("checked and unchecked products are compared at the same clock", "[soak]") {
  // The clock falls by a fifth in the window, as after products of integers at the power limit.
  Rig rig;
  rig.pace.begin(0);
  ComparedRates rates;
  const double begin = rig.machine.now;
  rates.add(rig.pace.run(0.6, never, [&](int chunk, std::uint32_t count) {
    const double clock = 1 - (rig.machine.now - begin) / 3;
    for (std::uint32_t i = 0; i < count; ++i)
      rig.machine.enqueue((is_checked_chunk(chunk) ? 1.03e-3 : 1e-3) / clock);
  }));
  CHECK(rates.unchecked > 100);
  CHECK(rates.ratio() == Approx(1 / 1.03).epsilon(0.002));
  CHECK(std::isnan(ComparedRates().ratio()));
  ComparedRates few;
  few.add({{1, kUnknown}, {1, 1}, {1, 1}, {1, 1}, {1, kUnknown}});
  CHECK(std::isnan(few.ratio()));
}

// Hashes of tiles: host and devices agree, and one bit is seen.

TEST_CASE("host and device hash a tile alike; a flipped bit changes it", "[soak][kernels]") {
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
    CHECK(first[tile].first == hash_of_tile(matrix.data(), grid, tile));
    CHECK(first[tile].first == hash_of_tile(read_tile(*device, c.view(type), grid, tile, *stream)));
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
      std::swap_ranges(words.begin(), words.begin() + kRow, words.begin() + (row * kRow));
    }));
  for (const std::size_t by : {std::size_t{1}, std::size_t{2}, kRow, 16 * kRow})  // shifted
    CHECK(tile.finds(
        [&](auto& words) { std::rotate(words.begin(), words.begin() + by, words.end()); }));
}

}  // namespace shakedown::node
