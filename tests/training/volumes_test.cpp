#include "training/exchange/strategy.hpp"

#include <algorithm>
#include <string>

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

double sent(const std::string& strategy, int ranks, int rank, const StepVolume& step = {120, 120}) {
  return find_strategy(strategy).bytes_sent(step, ranks, rank);
}

}  // namespace

TEST_CASE("every strategy is listed once", "[volumes]") {
  for (const StrategyEntry& entry : strategies())
    CHECK(std::count_if(strategies().begin(), strategies().end(), [&](const StrategyEntry& other) {
            return std::string(other.name) == entry.name;
          }) == 1);
  CHECK_THROWS_WITH(find_strategy("no-such"), ContainsSubstring("no-such"));
}

// 120 bytes on 4 ranks, counted by hand: a ring's rank sends a quarter in each of 3 steps a pass.
TEST_CASE("a step's record names what a strategy exchanges", "[volumes]") {
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

TEST_CASE("a star", "[volumes]") {
  const StepVolume step{120, 60};
  CHECK(sent("parameter-server", 4, 0, step) == 3 * 60);
  CHECK(sent("parameter-server", 4, 1, step) == 120);
}

TEST_CASE("one rank sends nothing", "[volumes]") {
  for (const StrategyEntry& entry : strategies())
    CHECK(sent(entry.name, 1, 0, {120, 120, 8, 12, 2}) == 0);
}

TEST_CASE("a whole star or all-reduce moves what theory says", "[volumes]") {
  // by all ranks together: W up and W down; 2 (N - 1) buffers round the ring
  for (int ranks : {2, 3, 8}) {
    double star = 0;
    double ring = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      star += sent("parameter-server", ranks, rank);
      ring += sent("all-reduce", ranks, rank);
    }
    CHECK(star == 2.0 * (ranks - 1) * 120);
    CHECK(ring == Approx(2.0 * (ranks - 1) * 120));
  }
}

}  // namespace shakedown::training
