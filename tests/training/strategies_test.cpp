// The table of strategies, and the ranges that they exchange.
#include "training/exchange/strategy.hpp"

#include <fmt/format.h>

#include <sstream>
#include <string>

#include "common/error.hpp"
#include "common/kernels.hpp"
#include "resnet/weights.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::training {
TEST_CASE("what a strategy exchanges, and the bytes that each rank sends", "[volumes]") {
  CHECK_THROWS_WITH(find_strategy("no-such"), ContainsSubstring("no-such"));
  test::check_transcript("tests/training/volumes.txt", [](const std::string& given) {
    std::istringstream words(given);
    std::string name, text;
    int ranks = 0;
    StepVolume step;
    words >> name >> ranks >> step.gradients >> step.weights >> step.first_blocks >>
        step.last_blocks >> step.accumulate;
    const StrategyEntry& strategy = find_strategy(name);
    for (const Transfer& transfer : strategy.transfers)
      text += (text.empty() ? "" : ", ") + text_of(transfer);
    text += ":";
    for (int rank = 0; rank < ranks; ++rank)
      text += fmt::format(" {:g}", strategy.bytes_sent(step, ranks, rank));
    return text;
  });
}

TEST_CASE("one rank alone sends nothing", "[volumes]") {
  for (const StrategyEntry& entry : strategies())
    CHECK(entry.bytes_sent({120, 120, 8, 12, 2}, 1, 0) == 0);
}

// Ranges of the flat buffers in other places: shards, blocks that take turns.

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

TEST_CASE("ranges that take turns share places as large as the largest", "[shards]") {
  CHECK(rotating({{0, 5}, {5, 7}, {7, 16}, {16, 20}}, 2) ==
        Layout{{{0, 5}, 0}, {{5, 7}, 9}, {{7, 16}, 0}, {{16, 20}, 9}});
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
