// What bin/train --self-test concludes from what it measured.
#include "training/programs/self_test.hpp"

#include <cmath>

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

SelfTraining sound() { return {{1.4, 0.5, 0.01}, 1, 0, ""}; }

Certificate passed() {
  Certificate certificate;
  certificate.reference = "all-reduce";
  certificate.pass = true;
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
  failed.pass = false;
  failed.difference.tensor = "conv1.weight";
  CHECK(verdict_on_gradients(ddp, failed, sound()).outcome == Outcome::fail);
  CHECK_THAT(verdict_on_gradients(ddp, failed, sound()).cause, ContainsSubstring("conv1.weight"));
  Certificate waived;
  waived.waived = "one rank exchanges nothing";
  CHECK(verdict_on_gradients(ddp, waived, sound()).outcome == Outcome::inconclusive);
  CHECK(verdict_on_gradients(ddp, waived, apart).outcome == Outcome::fail);
}

}  // namespace shakedown::training
