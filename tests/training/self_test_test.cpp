// What bin/train --self-test concludes from what it measured.
#include "training/programs/self_test.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

SelfTraining sound() { return {{1.4, 0.5, 0.01}, 1, 0, ""}; }

Certificate passed() {
  Certificate certificate;
  certificate.reference = "all-reduce";
  certificate.outcome = Outcome::pass;
  return certificate;
}

}  // namespace

TEST_CASE("self-test: a loss that does not fall to a half fails", "[self_test]") {
  CHECK(verdict_on_loss(sound()).outcome == Outcome::pass);
  for (const double last : {0.8, 1.4, std::nan("")}) {
    SelfTraining trained = sound();
    trained.losses.back() = last;
    CHECK(verdict_on_loss(trained).outcome == Outcome::fail);
  }
}

TEST_CASE("self-test: a loss or weight that is not finite, and a skipped step, fail",
          "[self_test]") {
  CHECK(verdict_on_stability(sound(), "").outcome == Outcome::pass);
  SelfTraining diverged = sound();
  diverged.losses[1] = INFINITY;
  CHECK(verdict_on_stability(diverged, "").outcome == Outcome::fail);
  CHECK_THAT(verdict_on_stability(diverged, "").cause, ContainsSubstring("by step 40"));
  CHECK_THAT(verdict_on_stability(sound(), "fc.bias on rank 1").cause,
             ContainsSubstring("fc.bias on rank 1"));
  SelfTraining skipped = sound();
  skipped.skipped = 2;
  CHECK(verdict_on_stability(skipped, "").outcome == Outcome::fail);
}

TEST_CASE("self-test: gradients are judged by the certificate and by the ranks' weights",
          "[self_test]") {
  const std::string name = "ddp";
  const StrategyEntry& ddp = find_strategy(name);
  CHECK(verdict_on_gradients(ddp, passed(), sound()).outcome == Outcome::pass);
  SelfTraining apart = sound();
  apart.differed = "after step 40 rank 1 differs from rank 0";
  CHECK(verdict_on_gradients(ddp, passed(), apart).outcome == Outcome::fail);
  CHECK(verdict_on_gradients(ddp, passed(), apart).cause == apart.differed);
  Certificate failed = passed();
  failed.outcome = Outcome::fail;
  failed.difference.tensor = "conv1.weight";
  CHECK(verdict_on_gradients(ddp, failed, sound()).outcome == Outcome::fail);
  CHECK_THAT(verdict_on_gradients(ddp, failed, sound()).cause, ContainsSubstring("conv1.weight"));
  Certificate waived;
  waived.waived = "one rank exchanges nothing";
  CHECK(verdict_on_gradients(ddp, waived, sound()).outcome == Outcome::inconclusive);
  CHECK(verdict_on_gradients(ddp, waived, apart).outcome == Outcome::fail);
  Certificate unclear = passed();
  unclear.outcome = Outcome::inconclusive;
  unclear.cause = "conv1.weight moves by too little";
  CHECK(verdict_on_gradients(ddp, unclear, sound()).outcome == Outcome::inconclusive);
  CHECK(verdict_on_gradients(ddp, unclear, sound()).cause == unclear.cause);
}

TEST_CASE("self-test: sums of up to 4,096 ranks are exact in any order, and show each rank",
          "[self_test]") {
  for (const int ranks : {2, 8, 741, 742, 768, 1024, 2048, 4096})
    for (std::size_t element = 0; element < 61; ++element) {
      CAPTURE(ranks, element);
      std::vector<float> tree;
      double exact = 0;
      float least = 1;
      float sequential = 0;
      for (int r = 0; r < ranks; ++r) {
        tree.push_back(self_test_value(ranks, r, element, 2));
        exact += tree.back();
        sequential += tree.back();
        least = std::min(least, tree.back());
      }
      while (tree.size() > 1) {
        std::vector<float> sums;
        for (std::size_t i = 0; i < tree.size(); i += 2)
          sums.push_back(i + 1 < tree.size() ? tree[i] + tree[i + 1] : tree[i]);
        tree = sums;
      }
      REQUIRE(least == 1);  // none is zero, which nobody would miss
      REQUIRE(sequential == exact);
      REQUIRE(tree.front() == exact);
      REQUIRE(self_test_value(ranks, 0, element, 2) != self_test_value(ranks, 1, element, 2));
    }
}

}  // namespace shakedown::training
