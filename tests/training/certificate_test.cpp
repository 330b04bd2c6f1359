#include "training/measure/certificate.hpp"

#include <cmath>

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
    return table.parameters().at(
        static_cast<std::size_t>(table.parameter("layer3.0.conv1.weight")));
  }
  WeightDifference compare(bool adam, DataType gradient = DataType::float32) const {
    return compare_weights(table, gradient, adam, wanted, got, start);
  }
};

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
      const Parameter& p = step.middle();
      for (std::size_t i = p.offset; i < p.offset + p.stored; ++i)
        step.got[i] = static_cast<float>(
            step.start[i] + factor * (static_cast<double>(step.wanted[i]) - step.start[i]));
      CAPTURE(adam, factor);
      const WeightDifference found = step.compare(adam);
      CHECK_FALSE(found.pass);
      CHECK(found.tensor == p.name);
    }
  }
}

TEST_CASE("one weight that a shard's end left out fails, but adam's signs may turn",
          "[certificate]") {
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
      const Parameter& p = step.middle();
      for (std::size_t i = p.offset; i < p.offset + p.stored; ++i) {
        step.start[i] = 1;
        step.got[i] = step.wanted[i] = 1 + static_cast<float>(places) * kLastPlace;
      }
      CAPTURE(places, adam);
      const WeightDifference found = step.compare(adam, DataType::bfloat16);
      for (std::size_t i = 0; i < found.visible.size(); ++i)
        CHECK(found.visible[i] == (shown || &step.table.parameters()[i] != &p));
    }
}

TEST_CASE("the last place of a stored weight is no difference, a few of them are",
          "[certificate]") {
  constexpr float kLastPlace = 0x1p-23F;  // of weights in [1, 2)
  for (const auto& [places, fits] : {std::pair{1.0F, true}, std::pair{8.0F, false}}) {
    OneStep step;
    const Parameter& p = step.middle();
    for (std::size_t i = p.offset; i < p.offset + p.stored; ++i) {
      step.start[i] = 1;
      step.wanted[i] = 1 + 42 * kLastPlace;
      step.got[i] = step.wanted[i] + places * kLastPlace;
    }
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

}  // namespace shakedown::training
