// Weights of two strategies compared; ranks that are lost, doubled or swapped.
#include "training/measure/certificate.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "common/numbers.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/step/model_state.hpp"

namespace shakedown::training {
namespace {

/// Weights that a step has moved by about 1e-3, and what another strategy made of them.
struct OneStep {
  ParameterTable table{layers_of(find_architecture("resnet18")), 10, 3};
  std::vector<float> start = test::random_values(table.stored_count(), 1, -1, 1);
  std::vector<float> wanted = start;
  std::vector<float> got;

  OneStep() {
    const auto moves = test::random_values(wanted.size(), 2, -1e-3, 1e-3);
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += moves[i];
    got = wanted;
  }
  const Parameter& middle() const {
    return table.parameters().at(table.parameter("layer3.0.conv1.weight"));
  }
  /// change(start, wanted, got) of each of its weights.
  void change_middle(const std::function<void(float&, float&, float&)>& change) {
    for (std::size_t i = middle().offset; i < middle().offset + middle().stored; ++i)
      change(start[i], wanted[i], got[i]);
  }
  WeightDifference compare(bool adam, DataType gradient = DataType::float32) const {
    return compare_weights(table, gradient, adam, wanted, got, start);
  }
};

enum class Fault { none, lost, doubled, swapped };

/// What an exchange does with `ranks` ranks' gradients, in `type`: adds them up in the order of the
/// ranks, or divides each first, as NCCL does.
struct SimulatedRanks {
  int ranks = 2;
  int micro_batches = 1;
  DataType type = DataType::float32;
  bool divides_first = false;
  Fault fault = Fault::none;
  int rank = 0;          // at fault
  Range where = {0, 0};  // and in which gradients

  static constexpr std::size_t kElements = 4 * kFlatAlignment;

  int contribution_of(int r, std::size_t i) const {
    const bool at_fault = r == rank && i >= where.begin && i < where.end;
    if (!at_fault || fault == Fault::none) return r;
    return fault == Fault::swapped ? (r + 1) % ranks : fault == Fault::lost ? -1 : r;
  }

  float rounded(float x) const {
    if (type == DataType::float16) return float16_to_float(float_to_float16(x));
    return type == DataType::bfloat16 ? bfloat16_to_float(float_to_bfloat16(x)) : x;
  }

  /// The average in a round, in `type`.
  std::vector<float> average(const RankStamps& stamps, const Buffer& one, Device& device,
                             Stream& stream, int round) const {
    const float share = 1 / static_cast<float>(ranks);
    std::vector<float> all(kElements, 0.0F);  // over the micro-batches, in float32
    for (int m = 0; m < micro_batches; ++m) {
      std::vector<std::vector<float>> by_rank;
      for (int r = 0; r < ranks; ++r) {
        stamps.stamp(one.view(DataType::float32), {0, kElements}, round, r, m);
        by_rank.push_back(download<float>(device, stream, one.data(), kElements));
      }
      for (std::size_t i = 0; i < kElements; ++i) {
        float sum = 0;
        for (int r = 0; r < ranks; ++r) {
          const int from = contribution_of(r, i);
          float x = from < 0 ? 0 : by_rank[from][i];
          if (divides_first) x = rounded(x * share);
          const bool twice =
              fault == Fault::doubled && r == rank && i >= where.begin && i < where.end;
          sum = rounded(sum + (twice ? 2 * x : x));
        }
        all[i] += rounded(divides_first ? sum : sum * share) / static_cast<float>(micro_batches);
      }
    }
    for (float& x : all) x = rounded(x);
    return all;
  }

  /// After these rounds, or all.
  RankStamps::Found found(std::vector<int> rounds = {}) const {
    const auto device = test::open_device(BackendKind::cpu);
    const auto stream = device->make_stream();
    RankStamps stamps(*device, *stream, {{0, kElements}}, ranks, micro_batches);
    const Buffer one(*device, kElements * sizeof(float));
    if (rounds.empty()) {
      rounds.resize(static_cast<std::size_t>(stamps.rounds()));
      std::iota(rounds.begin(), rounds.end(), 0);
    }
    for (const int round : rounds) {
      upload<float>(*device, *stream, one.data(), average(stamps, one, *device, *stream, round));
      stamps.check({{0, kElements}, one.view(DataType::float32)}, round);
    }
    return stamps.found();
  }
};

const auto kTypes = {DataType::float32, DataType::float16, DataType::bfloat16};

}  // namespace

TEST_CASE("equal weights fit, and so do those that differ by roundings", "[certificate]") {
  OneStep step;
  CHECK(step.compare(false).pass);
  CHECK(step.compare(false).max_abs_diff == 0);
  for (std::size_t i = 0; i < step.got.size(); ++i)
    step.got[i] += 0.005F * (step.got[i] - step.start[i]);
  for (bool adam : {false, true}) CHECK(step.compare(adam).pass);
}

TEST_CASE("a tensor that did not move, moved twice or is not a number fails", "[certificate]") {
  for (bool adam : {false, true}) {
    for (double factor : {0.0, 2.0, double{NAN}, double{INFINITY}}) {
      OneStep step;
      step.change_middle([&](float& start, float& wanted, float& got) {
        got = static_cast<float>(start + factor * (static_cast<double>(wanted) - start));
      });
      CAPTURE(adam, factor);
      const WeightDifference found = step.compare(adam);
      CHECK_FALSE(found.pass);
      CHECK(found.tensor == step.middle().name);
    }
  }
}

TEST_CASE("one weight that was left out fails, but adam's signs may turn", "[certificate]") {
  OneStep step;
  const Parameter& p = step.middle();
  step.wanted[p.offset + p.stored - 1] = step.start[p.offset + p.stored - 1] + 1e-3F;
  step.got[p.offset + p.stored - 1] = step.start[p.offset + p.stored - 1];
  CHECK_FALSE(step.compare(false).pass);
  CHECK(step.compare(false).tensor == p.name);
  CHECK(step.compare(true).pass);
}

TEST_CASE("movements that the rounding of stored weights hides show nothing", "[certificate]") {
  constexpr float kLastPlace = 0x1p-23F;  // of weights in [1, 2)
  for (const auto& [places, shown] : {std::pair{0, false}, std::pair{1, false}, std::pair{8, true}})
    for (bool adam : {false, true}) {
      OneStep step;
      step.change_middle([&, places = places](float& start, float& wanted, float& got) {
        start = 1;
        got = wanted = 1 + static_cast<float>(places) * kLastPlace;
      });
      CAPTURE(places, adam);
      const WeightDifference found = step.compare(adam, DataType::bfloat16);
      for (std::size_t i = 0; i < found.visible.size(); ++i)
        CHECK(found.visible[i] == (shown || &step.table.parameters()[i] != &step.middle()));
    }
}

TEST_CASE("the last place of a weight is no difference, a few are", "[certificate]") {
  constexpr float kLastPlace = 0x1p-23F;  // of weights in [1, 2)
  for (const auto& [places, fits] : {std::pair{1.0F, true}, std::pair{8.0F, false}}) {
    OneStep step;
    step.change_middle([&, places = places](float& start, float& wanted, float& got) {
      start = 1;
      wanted = 1 + 42 * kLastPlace;
      got = wanted + places * kLastPlace;
    });
    CAPTURE(places);
    CHECK(step.compare(false).pass == fits);
  }
}

TEST_CASE("the tensor that no network can compute with is named", "[certificate]") {
  const OneStep step;
  const ParameterTable& table = step.table;
  std::vector<float> statistics(table.statistics_count(), 0.5F);
  CHECK(unsound_tensor(table, step.start, statistics).empty());
  for (float bad : {float{NAN}, float{INFINITY}}) {
    std::vector<float> weights = step.start;
    weights[step.middle().offset + step.middle().stored - 1] = bad;
    CHECK(unsound_tensor(table, weights, {}) == step.middle().name);
  }
  const RunningStatistics& first = table.statistics().front();
  for (float bad : {float{NAN}, -1.0F}) {
    statistics[first.offset + first.channels] = bad;
    CHECK(unsound_tensor(table, step.start, statistics) == first.name + ".running_var");
  }
  statistics[first.offset] = NAN;
  CHECK(unsound_tensor(table, step.start, statistics) == first.name + ".running_mean");
}

// Ranks that are lost, doubled or swapped among up to 4,096, in the arithmetic of every type that
// gradients are exchanged in.

CPU_TEST_CASE("all ranks, each once, are found so: 2 to 4,096", "[certificate]") {
  for (const DataType type : kTypes)
    for (const bool divides_first : {false, true}) {
      for (const int ranks : {2, 3, 7, 8, 64, 65, 100, 257}) {
        CAPTURE(name_of(type), divides_first, ranks);
        for (const int micro_batches : {1, 3}) {
          if (micro_batches > 1 && ranks > 8) continue;
          const RankStamps::Found found = SimulatedRanks{.ranks = ranks,
                                                         .micro_batches = micro_batches,
                                                         .type = type,
                                                         .divides_first = divides_first}
                                              .found();
          CHECK(found.wrong == 0);
          CHECK(found.checked == std::ceil(ranks / 64.0) * SimulatedRanks::kElements);
        }
      }
    }
  for (const auto& [ranks, type] :
       {std::pair{768, DataType::float32}, std::pair{1023, DataType::float16},
        std::pair{4096, DataType::bfloat16}, std::pair{4096, DataType::float16}}) {
    CAPTURE(name_of(type), ranks);
    CHECK(SimulatedRanks{.ranks = ranks, .type = type, .divides_first = true}.found({1}).wrong ==
          0);
  }
}

CPU_TEST_CASE("one rank lost, doubled or swapped is found, and where", "[certificate]") {
  for (const DataType type : kTypes)
    for (const int ranks : {2, 8, 64, 256})
      for (const Fault fault : {Fault::lost, Fault::doubled, Fault::swapped})
        for (const int rank : {0, ranks / 2, ranks - 1}) {
          if (ranks == 256 && rank != 255) continue;  // takes long
          CAPTURE(name_of(type), ranks, static_cast<int>(fault), rank);
          SimulatedRanks simulated{
              .ranks = ranks, .type = type, .divides_first = rank == 0, .fault = fault};
          simulated.rank = rank;
          simulated.where = {kFlatAlignment, 2 * kFlatAlignment};  // the smallest piece
          const RankStamps::Found found = simulated.found();
          CHECK(found.wrong > 0);
          CHECK(found.element >= kFlatAlignment);
          CHECK(found.element < 2 * kFlatAlignment);
          if (fault == Fault::swapped) continue;  // one is lost, the other doubled
          CHECK(found.rank == rank);
          CHECK(found.times == Approx(fault == Fault::lost ? 0.0 : 2.0).margin(0.02));
        }
}

CPU_TEST_CASE("every rank comes to every piece, and to nothing else", "[certificate]") {
  const auto device = test::open_device(BackendKind::cpu);
  const auto stream = device->make_stream();
  const std::vector<Range> gradients{{0, 128}, {128, 138}, {192, 192 + 65 + 64}};
  constexpr std::size_t kElements = 384;
  for (const int ranks : {2, 10, 11, 40}) {
    const RankStamps stamps(*device, *stream, gradients, ranks, 1);
    CHECK(stamps.elements() == 128 + 10 + 129);
    CHECK(stamps.rounds() == ranks);  // there is a chunk with one gradient
    const Buffer one(*device, kElements * sizeof(float));
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(ranks, r);
      std::vector<int> stamped(kElements, 0);
      for (int round = 0; round < stamps.rounds(); ++round) {
        device->zero(one.data(), one.bytes(), *stream);
        stamps.stamp(one.view(DataType::float32), {0, kElements}, round, r, 0);
        const auto mine = download<float>(*device, *stream, one.data(), kElements);
        for (std::size_t i = 0; i < kElements; ++i) stamped[i] += mine[i] != 0 ? 1 : 0;
      }
      CHECK(std::accumulate(stamped.begin() + 138, stamped.begin() + 192, 0) == 0);
      CHECK(std::accumulate(stamped.begin() + 321, stamped.end(), 0) == 0);
      for (const Range& piece : {Range{0, 64}, Range{64, 128}, Range{128, 138}, Range{320, 321}})
        CHECK(std::accumulate(stamped.begin() + piece.begin, stamped.begin() + piece.end, 0) > 0);
    }
  }
}

CPU_TEST_CASE("one micro-batch, a piece moved, a NaN: each is found", "[certificate]") {
  const auto device = test::open_device(BackendKind::cpu);
  const auto stream = device->make_stream();
  constexpr std::size_t kElements = 8 * kFlatAlignment;
  constexpr int kRanks = 5;
  constexpr int kMicroBatches = 3;
  const auto wrong_after = [&](auto&& change) {
    RankStamps stamps(*device, *stream, {{0, kElements}}, kRanks, kMicroBatches);
    std::vector<float> sum(kElements, 0.0F);
    const Buffer one(*device, kElements * sizeof(float));
    for (int r = 0; r < kRanks; ++r)
      for (int m = 0; m < kMicroBatches; ++m) {
        stamps.stamp(one.view(DataType::float32), {0, kElements}, 0, r, m);
        const auto mine = download<float>(*device, *stream, one.data(), kElements);
        for (std::size_t i = 0; i < kElements; ++i) sum[i] += mine[i];
        change(sum, mine, r, m);
      }
    for (float& x : sum) x /= kRanks * kMicroBatches;
    change(sum, sum, -1, -1);
    upload<float>(*device, *stream, one.data(), sum);
    stamps.check({{0, kElements}, one.view(DataType::float32)}, 0);
    return stamps.found().wrong;
  };
  using Values = std::vector<float>;
  CHECK(wrong_after([](Values&, const Values&, int, int) {}) == 0);
  CHECK(wrong_after([](Values& sum, const Values& mine, int r, int m) {
          for (std::size_t i = 0; r == 2 && m == 1 && i < kElements; ++i) sum[i] -= mine[i];
        }) > 0);
  CHECK(wrong_after([](Values& sum, const Values&, int r, int) {
          if (r < 0) std::swap_ranges(sum.begin(), sum.begin() + 64, sum.begin() + 64);
        }) > 0);
  for (const float bad : {NAN, INFINITY, 0.0F})
    CHECK(wrong_after([&](Values& sum, const Values&, int r, int) {
            if (r < 0) sum[77] = bad;
          }) == 1);
}

}  // namespace shakedown::training
