// The table of strategies, and the ranges that they exchange.
#include "training/exchange/strategy.hpp"

#include <string>

#include "common/error.hpp"
#include "common/kernels.hpp"
#include "resnet/weights.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/exchange/buckets.hpp"

namespace shakedown::training {
namespace {

double sent(const std::string& strategy, int ranks, int rank, const StepVolume& step = {120, 120}) {
  return find_strategy(strategy).bytes_sent(step, ranks, rank);
}

}  // namespace

// 120 bytes on 4 ranks, counted by hand: a ring's rank sends a quarter in each of 3 steps a pass.
TEST_CASE("a step's record names what a strategy exchanges", "[volumes]") {
  CHECK_THROWS_WITH(find_strategy("no-such"), ContainsSubstring("no-such"));
  const auto names = [](const char* strategy) {
    std::string all;
    for (const Transfer& transfer : find_strategy(strategy).transfers)
      all += (all.empty() ? "" : ", ") + text_of(transfer);
    return all;
  };
  CHECK(names("all-reduce") == "gradients all_reduce whole");
  CHECK(names("ddp") == "gradients all_reduce buckets");
  CHECK(names("parameter-server") == "gradients star whole, weights star whole");
  CHECK(names("zero2").starts_with("gradients pass blocks each_micro_batch"));
  CHECK(names("fsdp").find("gathered_blocks") != std::string::npos);
}

TEST_CASE("volumes are those of rings and stars", "[volumes]") {
  CHECK(sent("none", 4, 1) == 0);
  for (const char* ring : {"all-reduce", "ddp", "parameter-server-sharded", "zero1", "zero2"})
    for (int rank : {0, 3}) CHECK(sent(ring, 4, rank) == 3 * 30 + 3 * 30);
  CHECK(sent("fsdp", 4, 2) == 3 * 3 * 30);
  CHECK(sent("data-parallel", 4, 0) == 120);      // weights, to the next
  CHECK(sent("data-parallel", 4, 1) == 2 * 120);  // gradients to rank 0, weights to the next
  CHECK(sent("data-parallel", 4, 3) == 120);      // gradients
  for (const char* star : {"parameter-server", "parameter-server-async"}) {
    CHECK(sent(star, 4, 0) == 3 * 120);
    CHECK(sent(star, 4, 1) == 120);
    CHECK(sent(star, 4, 0, {120, 60}) == 3 * 60);  // half the bytes for weights
    CHECK(sent(star, 4, 1, {120, 60}) == 120);
  }
}

TEST_CASE("what each micro-batch exchanges", "[volumes]") {
  const StepVolume step{120, 60, 8, 12, 2};  // half the bytes for weights
  const auto per_pass = [&](const char* strategy) { return sent(strategy, 4, 1, step) / 0.75; };
  CHECK(per_pass("ddp") == 2 * 120);
  CHECK(per_pass("zero1") == 120 + 60);
  CHECK(per_pass("zero2") == 2 * 120 + 60);
  // gathered: 60 and 48, then 52 and 48
  CHECK(per_pass("fsdp") == 2 * 120 + 60 + 48 + 52 + 48);
}

TEST_CASE("one rank sends nothing, all of several what theory says", "[volumes]") {
  for (const StrategyEntry& entry : strategies())
    CHECK(sent(entry.name, 1, 0, {120, 120, 8, 12, 2}) == 0);
  // W up and W down a star; 2 (N - 1) buffers round the ring
  for (int ranks : {2, 3, 8}) {
    double star = 0, ring = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      star += sent("parameter-server", ranks, rank);
      ring += sent("all-reduce", ranks, rank);
    }
    CHECK(star == 2.0 * (ranks - 1) * 120);
    CHECK(ring == Approx(2.0 * (ranks - 1) * 120));
  }
}

// Ranges of the flat buffers in other places: shards, packed parts, blocks that take turns.

TEST_CASE("shards are whole chunks, side by side, and cover the range", "[shards]") {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (std::size_t chunks : {1, 2, 5, 8, 9, 1000}) {
      const Range range{640, 640 + chunks * kFlatAlignment};
      std::size_t end = range.begin;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range shard = shard_of(range, rank, ranks);
        CAPTURE(ranks, chunks, rank);
        CHECK(shard.begin == end);
        CHECK(shard.count() % kFlatAlignment == 0);
        if (rank + 1 < ranks)
          CHECK(shard.count() == chunks / static_cast<std::size_t>(ranks) * kFlatAlignment);
        end = shard.end;
      }
      CHECK(end == range.end);
    }
}

TEST_CASE("packed ranges follow one another without gaps", "[shards]") {
  CHECK(packed({{10, 14}, {2, 3}, {20, 20}, {5, 9}}) ==
        Layout{{{10, 14}, 0}, {{2, 3}, 4}, {{20, 20}, 5}, {{5, 9}, 5}});
  CHECK(packed({}).empty());
}

TEST_CASE("ranges that take turns share places as large as the largest", "[shards]") {
  CHECK(rotating({{0, 5}, {5, 7}, {7, 16}, {16, 20}}, 2) ==
        Layout{{{0, 5}, 0}, {{5, 7}, 9}, {{7, 16}, 0}, {{16, 20}, 9}});
}

TEST_CASE("a flat buffer gives parts of what it holds and nothing else", "[shards]") {
  for (BackendKind kind : test::backends()) {
    const auto device = test::open_device(kind);
    const auto stream = device->make_stream();
    const FlatBuffer buffer(*device, *stream, DataType::float32, packed({{10, 14}, {2, 6}}));
    CHECK(buffer.bytes() == 8 * sizeof(float));
    CHECK(buffer.at({3, 5}).count == 2);
    CHECK(buffer.at({3, 5}).data == static_cast<float*>(buffer.memory().data) + 5);
    CHECK(buffer.holds({10, 14}));
    CHECK_FALSE(buffer.holds({5, 7}));
    CHECK_THROWS_AS(buffer.at({5, 7}), InternalError);
    CHECK(download<float>(*device, *stream, buffer.memory().data, 8) == std::vector<float>(8, 0));
    CHECK_FALSE(FlatBuffer().holds({0, 1}));
  }
}

TEST_CASE("gathered chunks are the source's, or zero", "[shards][kernels]") {
  for (BackendKind kind : test::backends()) {
    const auto device = test::open_device(kind);
    const auto stream = device->make_stream();
    const std::vector<float> values = test::random_values(5 * kFlatAlignment, 3);
    const Buffer from = test::to_device(*device, *stream, values);
    const Buffer sources =
        test::to_device(*device, *stream, std::vector<std::int64_t>{4, -1, 0, 4});
    const Buffer to(*device, 4 * kFlatAlignment * sizeof(float));
    device->kernels().gather_chunks(to.view(DataType::float32), from.view(DataType::float32),
                                    static_cast<const std::int64_t*>(sources.data()), *stream);
    const auto got = download<float>(*device, *stream, to.data(), 4 * kFlatAlignment);
    for (std::size_t i = 0; i < kFlatAlignment; ++i) {
      CHECK(got[i] == values[4 * kFlatAlignment + i]);
      CHECK(got[kFlatAlignment + i] == 0);
      CHECK(got[2 * kFlatAlignment + i] == values[i]);
      CHECK(got[3 * kFlatAlignment + i] == values[4 * kFlatAlignment + i]);
    }
  }
}

}  // namespace shakedown::training
