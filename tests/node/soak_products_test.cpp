// A soak's schedule, the CPU as a juror of its products, and the hashes of their tiles.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>

#include "common/hash.hpp"
#include "common/nvml.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/product_load.hpp"
#include "launch/node/soak/schedule.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/soak_run.hpp"
#include "launch/node/soak/tile_hash.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {

TEST_CASE("a square wave has two periods in its window", "[soak]") {
  auto square = phases_of_cycle({"square"}, {"products"}, {ProductType::bf16}, true, 1);
  fit_pulses(square, 2);  // whose share is 2
  CHECK(square[0].pulse_hertz == 0.5);
  fit_pulses(square, 0.8);
  CHECK(square[0].name() == "square products bf16 1.25 Hz");
}

TEST_CASE("products have 83 % of a lone GPU's time, in windows of two seconds at most", "[soak]") {
  const auto cycle = phases_of_cycle({"all"}, {"all"}, soaked(all_product_types()), true, 2);
  double all = 0;
  double products = 0;
  for (const Phase& phase : cycle) {
    all += phase.share;
    if (phase.has(LoadKind::products)) products += phase.share;
  }
  CHECK(products / all == Approx(0.833).margin(0.001));
  CHECK(window_seconds(900, cycle) == 2);
  CHECK(window_seconds(10, cycle) == Approx(10 / (2 * all)));
  for (const Phase& phase :
       phases_of_cycle({"sweep"}, {"all"}, soaked(all_product_types()), true, 0))
    CHECK(phase.share <= (phase.has(LoadKind::products) ? 0 : 0.15));
  CHECK(window_seconds(1, phases_of_cycle({"sweep"}, {"products"}, soaked(all_product_types()),
                                          true, 0)) == 2);
}

namespace {

/// A call of a load whose batches from `first` on have the fault, and what it found.
struct Call {
  LoadCount count;
  std::vector<Mismatch> found;

  Call(Device& device, FaultKind fault, int first, std::int64_t m = 512, std::int64_t n = 512,
       Stopped stopped = never_stopped) {
    ProductSettings settings;
    settings.spec = {ProductType::fp32, m, n, 32};
    settings.load.fault = fault;
    settings.load.stopped = std::move(stopped);
    settings.first_faulty = first;
    ProductLoad load(settings, device, test::session());
    CHECK(load.algorithm().turns);
    count = load.run(0, found);
    CHECK(load.checked_over_unchecked() > 0);
    count.wrong += load.confer(test::session(), found);
  }
};

constexpr int kTurns = ProductLoad::kLeastTurns;  // of a call that has no time

}  // namespace

TEST_CASE("one GPU alone is the jury of its products, by turns", "[soak]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  if (test::session().world_size() > 1) return;
  CAPTURE(name_of(kind));
  const Call clean(*device, FaultKind::product, ProductLoad::kMostBatches);
  CHECK(clean.found.empty());
  CHECK(clean.count.wrong == 0);
  CHECK(clean.count.checked >= ProductLoad::kSeeds * kTurns);
  CHECK(clean.count.self_compared == 0);
  CHECK(clean.count.turns == 3 * kTurns);  // a seed of four is of integers
  // A place of the launch that is wrong in all turns of the last seed, of full entropy.
  const Call sticky(*device, FaultKind::product, 3 * kTurns);
  REQUIRE(sticky.found.size() == 1);
  const Mismatch& one = sticky.found[0];
  CHECK(one.operation == 3);
  CHECK(one.outcome == Outcome::fail);
  CHECK(one.class_ == Class::hardware);
  CHECK_THAT(one.cause,
             ContainsSubstring("the same product in other turns contradicts it; reproduces"));
  CHECK_THAT(one.cause, ContainsSubstring("; stays at its place of the launch, so at one "));
  CHECK(one.reproduced == Reruns().enough);
  CHECK((*one.expected ^ *one.found) == 1U << 16);
  // Once a signal has come, it is reported as it is.
  const Call stopped(*device, FaultKind::product, 3 * kTurns, 512, 512, [] { return true; });
  REQUIRE(stopped.found.size() == 1);
  CHECK(stopped.found[0].outcome == Outcome::fail);
  CHECK(stopped.found[0].reproduced == 1);
  CHECK_THAT(stopped.found[0].cause, ContainsSubstring("; could not be placed"));
  // Of two tiles the place has the same one in two turns of three: of integers the known answer is
  // right, not most turns.
  const Call integers(*device, FaultKind::product, 0, 256, 128);
  REQUIRE_FALSE(integers.found.empty());
  CHECK(integers.found[0].operation == 0);
  CHECK_THAT(integers.found[0].cause,
             ContainsSubstring("reproduces 20 of 20") &&
                 ContainsSubstring("; stays at its place of the launch, so at one "));
  // Of four tiles it has one in two turns of the first three: further turns have a vote too.
  const Call most(*device, FaultKind::product, 3 * kTurns, 512, 128);
  REQUIRE_FALSE(most.found.empty());
  CHECK_THAT(most.found[0].cause,
             ContainsSubstring("; stays at its place of the launch, so at one "));
  // The last turn of the last seed alone.
  const Call last(*device, FaultKind::product, ProductLoad::kSeeds * kTurns - 1);
  REQUIRE(last.found.size() == 1);
  CHECK(last.found[0].operation == 3);
  CHECK_THAT(last.found[0].where, EndsWith(", in turn 2"));
  CHECK(last.count.wrong > 0);
  CHECK(last.count.wrong < 1024);
}

GPU_TEST_CASE("products of the soak's size are alike in every turn, in every type", "[soak]") {
  const auto device = test::open_device(BackendKind::gpu);
  if (test::session().world_size() > 1) return;
  for (const ProductType type : soaked(product_types(*device))) {
    CAPTURE(name_of(type));
    ProductSettings settings;
    settings.spec = product_spec(type, 8192);
    for (const Operands operands : all_operands()) {
      CAPTURE(name_of(operands));
      settings.first_operands = operands;
      ProductLoad load(settings, *device, test::session());
      settings.algorithm = load.algorithm();
      INFO(load.algorithm().name);
      CHECK(load.algorithm().turns);
      std::vector<Mismatch> found;
      LoadCount count = load.run(operands == Operands::integers ? 1 : 0, found);
      if (operands == Operands::integers) CHECK(load.checked_over_unchecked() > 0.9);
      count.wrong += load.confer(test::session(), found);
      CHECK(found.empty());
      CHECK(count.wrong == 0);
      CHECK(count.self_compared == 0);
      CHECK(count.turns >= 3 * kTurns);
    }
  }
}

GPU_TEST_CASE("an SM that is held gets no other work", "[soak]") {
  const auto device = test::open_device(BackendKind::gpu);
  const auto stream = device->make_stream();
  const auto probe = make_probe(*device);
  const std::vector<int> all = probe->processors();
  const ProbeTask task{ProbeKind::integer, 5, 10};
  CHECK(probe->run(task, all, *stream).size() == all.size());
  for (const std::size_t at : {std::size_t{0}, all.size() / 2, all.size() - 1}) {
    const HeldProcessor held(*device, all[at]);
    REQUIRE(held.holds());
    const int other = all[(at + 1) % all.size()];
    CHECK(probe->run(task, std::span(&other, 1), *stream).size() == 1);
    CHECK(probe->run(task, std::span(&all[at], 1), *stream).empty());
  }
  CHECK(probe->run(task, all, *stream).size() == all.size());
}

TEST_CASE("operands that change in memory are named by place and bit", "[soak]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  if (test::session().world_size() > 1) return;
  CAPTURE(name_of(kind));
  const Call call(*device, FaultKind::memory, ProductLoad::kSeeds * kTurns - 1);
  REQUIRE(call.found.size() == 1);
  const Mismatch& one = call.found[0];
  CHECK(one.where == "operand B, element 31,8 in memory");
  CHECK((*one.expected ^ *one.found) == 1U << 5);
  CHECK(one.reproduced == one.repeats);
  CHECK(one.class_ == Class::hardware);
  CHECK(call.count.wrong == 1);
}

TEST_CASE("few tiles that differ between turns are a fault, most are the algorithm", "[soak]") {
  std::vector<TileRecord> own(132);
  for (std::size_t tile = 0; tile < own.size(); ++tile) own[tile].first = tile + 1;
  const auto with_moved = [&](std::size_t tiles) {
    auto other = own;
    for (std::size_t tile = 0; tile < tiles; ++tile) other[tile].first += 1000;
    return other;
  };
  CHECK(keeps_bits(own, own));
  CHECK(keeps_bits(own, with_moved(66)));
  CHECK_FALSE(keeps_bits(own, with_moved(67)));
  auto unsteady = with_moved(132);
  unsteady[70].differing = 1;
  CHECK(keeps_bits(own, unsteady));
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  for (const ProductType type : soaked(product_types(*device))) {
    CAPTURE(name_of(kind), name_of(type));
    CHECK(choose_algorithm({type, 256, 256, 256}, *device, test::session()).turns);
  }
}

TEST_CASE("the matrices of a soak's product have as many bytes each", "[soak]") {
  for (const ProductType type : soaked(all_product_types())) {
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

namespace {

std::ptrdiff_t differing_tiles(const std::vector<TileRecord>& a, const std::vector<TileRecord>& b) {
  std::ptrdiff_t differing = 0;
  for (std::size_t tile = 0; tile < a.size(); ++tile) differing += a[tile].first != b[tile].first;
  return differing;
}

}  // namespace

TEST_CASE("the CPU's tile is what the device computes, and wrong bits lie beyond it", "[soak]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  for (const ProductType type : soaked(product_types(*device))) {
    CAPTURE(name_of(kind), name_of(type));
    const ProductSpec spec{type, 256, 128, 256};
    ProductRig rig(spec, *device, "", 1);
    const HostTile exact = host_tile(spec, Operands::integers, 5, 1);
    for (const std::uint32_t turn : {0U, 1U, 2U}) {
      rig.fill({Operands::integers, 5, turn});
      rig.run_checked(0, 0);
      CHECK(rig.record(0, 1).first == hash_of_tile(encoded(exact, result_type(type)), 5));
      CHECK(beyond_bound(exact, rig.tile_bytes(1), result_type(type)).empty());
      CHECK_FALSE(rig.check_operands());
    }
    for (const Operands operands : all_operands()) {
      CAPTURE(name_of(operands));
      const HostTile near = host_tile(spec, operands, 5, 1);
      rig.fill({operands, 5, 0});
      rig.run_checked(0, 0);
      const std::vector<TileRecord> own = rig.records(0);
      CHECK(beyond_bound(near, rig.tile_bytes(1), result_type(type)).empty());
      rig.fill({operands, 5, 1});
      rig.run_checked(0, 0);
      CHECK(differing_tiles(own, rig.records(0)) == 0);
      CHECK_FALSE(rig.check_operands());
    }
    rig.fill({Operands::full_entropy, 5, 1});
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

// Square waves and steady loads, on a device that keeps time of its own.

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
  bool done() const override { return machine_.now >= machine_.busy; }

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
            {std::make_unique<FakeEvent>(machine), std::make_unique<FakeEvent>(machine)},
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
    int chunks = 0;
    rig.pace.run(kWindow * batch / kBatches, never, [&](std::uint32_t count) {
      ++chunks;
      for (std::uint32_t i = 0; i < count; ++i) {
        ++products[static_cast<int>((rig.machine.now - begin + 1e-6) * hertz)];
        rig.machine.enqueue(product_s);
      }
    });
    CHECK(chunks > 0);
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
  const auto enqueue = [&](std::uint32_t count) {
    products += count;
    for (std::uint32_t i = 0; i < count; ++i) rig.machine.enqueue(1e-3);
  };
  rig.pace.run(2, never, enqueue);
  CHECK(rig.pace.size() == 8);
  CHECK(products == Approx(2000).epsilon(0.02));
  // Nothing is known of a chunk before which the queue was empty.
  for (int i = 0; i < 20; ++i) {
    rig.stream.synchronize();
    rig.pace.run(0, never, enqueue);
    CHECK(rig.pace.size() == 8);
  }
}

// Hashes of tiles: host and devices agree in every turn, and one bit is seen.

TEST_CASE("host and device hash a tile alike; a flipped bit changes it", "[soak][kernels]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const ProductType product = GENERATE(ProductType::fp16, ProductType::fp32, ProductType::fp64);
  const DataType type = result_type(product);
  CAPTURE(name_of(kind), name_of(type));
  const auto width = size_of(type);
  const TileGrid grid{2 * kTileEdge, 3 * kTileEdge, static_cast<int>(width)};
  REQUIRE(grid.tiles() == 6);
  constexpr std::uint64_t kSeed = 77;
  std::vector<std::byte> matrix(static_cast<std::size_t>(grid.rows * grid.row_bytes()));
  Random random(3);
  for (std::byte& byte : matrix) byte = static_cast<std::byte>(random.next());
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const auto hasher = make_tile_hasher(kind);
  const Buffer c(*device, matrix.size());
  const Buffer keys(*device, static_cast<std::size_t>(grid.tile_bytes()));
  hasher->make_keys(kSeed, keys.view(DataType::uint64), *stream);
  const Buffer records = test::to_device(*device, *stream, std::vector<TileRecord>(6));
  const auto hash = [&](const Turn& turn, std::uint32_t product) {
    hasher->hash(c.view(type), grid, turn, keys.view(DataType::uint64), product,
                 static_cast<TileRecord*>(records.data()), *stream);
    return download<TileRecord>(*device, *stream, records.data(), 6);
  };
  std::vector<std::uint64_t> own;
  for (std::uint32_t number = 0; number < 3; ++number) {
    CAPTURE(number);
    const Turn turn = turn_of({product, grid.rows, grid.columns, kTileEdge}, kSeed, number);
    auto turned = matrix;
    for (std::int64_t row = 0; row < grid.rows; ++row)
      for (std::int64_t column = 0; column < grid.columns; ++column) {
        const std::int64_t from =
            turn.rows.original(row) * grid.columns + turn.columns.original(column);
        std::memcpy(&turned[static_cast<std::size_t>(row * grid.columns + column) * width],
                    &matrix[static_cast<std::size_t>(from) * width], width);
      }
    upload<std::byte>(*device, *stream, c.data(), turned);
    const std::vector<TileRecord> first = hash(turn, 0);
    if (number == 0)
      for (const TileRecord& record : first) own.push_back(record.first);
    for (std::int64_t tile = 0; tile < 6; ++tile) {
      const auto at = static_cast<std::size_t>(tile);
      CHECK(first[at].first == own[at]);
      CHECK(own[at] ==
            hash_of_tile(read_tile(*device, c.view(type), grid, turn, tile, *stream), kSeed));
    }
    CHECK(hash(turn, 1)[4].differing == 0);
    const std::int64_t place = turn.rows.place_of_tile(1) * 3 + turn.columns.place_of_tile(1);
    turned[static_cast<std::size_t>(grid.begin(place) + 5 * grid.row_bytes() + 17)] ^= std::byte{4};
    upload<std::byte>(*device, *stream, c.data(), turned);
    const std::vector<TileRecord> flipped = hash(turn, 2);
    for (std::size_t tile = 0; tile < 6; ++tile) {
      CHECK(flipped[tile].differing == (tile == 4 ? 1 : 0));
      CHECK(flipped[tile].first == first[tile].first);
    }
  }
  hasher->make_keys(kSeed + 1, keys.view(DataType::uint64), *stream);
  CHECK(hash({}, 0)[0].first != own[0]);
}

TEST_CASE("errors in several words of a tile do not cancel in its hash", "[soak]") {
  const std::uint64_t range = GENERATE(0, 16, 1);     // full entropy, small integers, zeros
  constexpr std::size_t kRow = kTileEdge * 2 / 8;     // words, of elements of 2 bytes
  constexpr std::size_t kAt = 1234, kFar = 4 * kRow;  // the first word of a group
  std::vector<std::uint64_t> right(kTileEdge * kRow);
  Random random(7);
  for (std::uint64_t& word : right) word = range == 0 ? random.next() : random.below(range);
  const auto hash = [](const std::vector<std::uint64_t>& words) {
    const auto bytes = std::as_bytes(std::span(words));
    return hash_of_tile({bytes.begin(), bytes.end()}, 7);
  };
  const std::uint64_t right_hash = hash(right);
  const auto finds = [&](const auto& damage) {
    std::vector<std::uint64_t> words = right;
    damage(words);
    return words == right || hash(words) != right_hash;
  };
  const auto finds_flips = [&](std::uint64_t bits, std::initializer_list<std::size_t> where) {
    return finds([&](auto& words) {
      for (const std::size_t at : where) words[at] ^= bits;
    });
  };
  for (int bit = 0; bit < 64; ++bit) {
    CAPTURE(bit);
    const std::uint64_t one = std::uint64_t{1} << bit;
    CHECK(finds_flips(one, {kAt}));
    for (const std::size_t other :
         {kAt + 1, kAt + 2, kAt + kRow, kAt + kFar, kAt + kFar + 1, kAt + 2 * kFar})
      CHECK(finds_flips(one, {kAt, other}));
    CHECK(finds_flips(one, {kAt, kAt + 1, kAt + kFar, kAt + kFar + 1}));
  }
  for (int bit = 0; bit < 16; ++bit) {  // of each element, as of a sign
    const std::uint64_t each = 0x0001000100010001U << bit;
    CHECK(finds_flips(each, {kAt, kAt + 1}));
    CHECK(finds([&](auto& words) {
      for (std::uint64_t& word : words) word ^= each;
    }));
  }
  if (range == 1) return;
  // Words in other places: exchanged, rows exchanged, all shifted.
  for (std::size_t other = 1; other < right.size(); other += 37)
    CHECK(finds([&](auto& words) { std::swap(words[0], words[other]); }));
  for (std::size_t row = 1; row < kTileEdge; ++row)
    CHECK(finds([&](auto& words) {
      std::swap_ranges(words.begin(), words.begin() + kRow, words.begin() + (row * kRow));
    }));
  for (const std::size_t by : {std::size_t{1}, std::size_t{2}, kRow, 16 * kRow})
    CHECK(finds([&](auto& words) { std::rotate(words.begin(), words.begin() + by, words.end()); }));
}

}  // namespace shakedown::node
