// Where an error sticks, from counts alone.
#include "launch/node/soak/placing.hpp"

#include <algorithm>
#include <vector>

#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

Placing placed(Attempts same, Attempts processors, Attempts addresses, Attempts gpus = {}) {
  return place_error({same, processors, addresses, gpus}, "SM", 17);
}

}  // namespace

TEST_CASE("an error is placed by where it is seen again", "[placing]") {
  constexpr Attempts kAll{100, 100};
  constexpr Attempts kNone{100, 0};
  CHECK(placed(kAll, kNone, kAll).culprit == Culprit::processor);
  CHECK(placed(kAll, kAll, kNone).culprit == Culprit::address);
  CHECK(placed(kAll, kNone, kNone).culprit == Culprit::pair);
  CHECK(placed(kAll, kAll, kAll).culprit == Culprit::gpu);
  CHECK(placed(kNone, kNone, kNone).culprit == Culprit::transient);
  CHECK(placed({}, {}, {}).culprit == Culprit::unknown);
  CHECK(placed(kAll, {}, kAll).culprit == Culprit::unknown);
  CHECK(placed(kAll, {}, kNone).culprit == Culprit::address);  // one core: it is right elsewhere
  CHECK(placed(kAll, kNone, {}).culprit == Culprit::unknown);
  CHECK(placed(kAll, kNone, kAll, {100, 100}).culprit == Culprit::program);
  CHECK(placed(kAll, kAll, kAll).class_ == Class::hardware);
  CHECK(placed({}, {}, {}).class_ == Class::hardware);
  CHECK(placed({}, {}, {}).action.starts_with("run again"));
  CHECK(placed(kAll, kAll, kAll, {200, 0}).class_ == Class::hardware);
  CHECK(placed(kAll, kAll, kAll, {200, 0}).cause.ends_with(", 0 of 200 on other GPUs"));
  CHECK(helpers_of(6, 8) == std::vector{7, 0});
  CHECK(helpers_of(1, 2) == std::vector{0});
  CHECK(helpers_of(0, 1).empty());
  // An SM that is wrong at times, next to one chance error elsewhere.
  CHECK(placed({100, 40}, {100, 1}, {100, 35}).culprit == Culprit::processor);
  CHECK(placed(kAll, kNone, kAll).cause ==
        "sticks to SM 17: wrong in 100 of 100 on SM 17, 0 of 100 on other SMs, 100 of 100 at other "
        "addresses");
}

TEST_CASE("no error passes, wherever it was placed", "[placing]") {
  for (const Attempts same : {Attempts{}, Attempts{100, 0}, Attempts{100, 7}})
    for (const Attempts processors : {Attempts{}, Attempts{100, 0}, Attempts{100, 7}})
      for (const Attempts addresses : {Attempts{}, Attempts{100, 0}, Attempts{100, 7}})
        for (const Attempts gpus : {Attempts{}, Attempts{100, 0}, Attempts{100, 7}}) {
          const Placing placing = placed(same, processors, addresses, gpus);
          CHECK(placing.outcome == (gpus.wrong > 0 ? Outcome::inconclusive : Outcome::fail));
          CHECK(placing.class_);
          CHECK_FALSE(placing.action.empty());
        }
}

TEST_CASE("evidence counts what got to its processor", "[placing]") {
  std::vector<int> tried;
  const Retrial retrial = [&](int processor, int address) {
    tried.push_back(address);
    return processor == 9 ? std::nullopt : std::optional(processor == 3);
  };
  const std::vector<int> processors{3, 4, 9};
  const Evidence evidence = collect_evidence(retrial, 3, processors, 2, 10);
  CHECK(evidence.same == Attempts{10, 10});
  CHECK(evidence.other_processors == Attempts{5, 0});  // 9 is never reached
  CHECK(evidence.other_addresses == Attempts{10, 10});
  CHECK(std::count(tried.begin(), tried.end(), 2) == 5);
}

}  // namespace shakedown::node
