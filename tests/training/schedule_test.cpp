#include "training/step/schedule.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::training {

TEST_CASE("schedules of the learning rate", "[schedule]") {
  ScheduleOptions options;
  CHECK(Schedule(options, 0.4, 10).at(7.3) == 0.4);

  options.lr_warmup_epochs = 2;
  CHECK(Schedule(options, 0.4, 10).at(1) == Approx(0.2));
  CHECK(Schedule(options, 0.4, 10).at(0) > 0);
  CHECK(Schedule(options, 0.4, 10).at(2) == Approx(0.4));

  options.schedule = "cosine";
  CHECK(Schedule(options, 0.4, 10).at(2) == Approx(0.4));
  CHECK(Schedule(options, 0.4, 10).at(6) == Approx(0.2));
  CHECK(Schedule(options, 0.4, 10).at(10) == Approx(0).margin(1e-12));

  options.schedule = "step";
  options.lr_warmup_epochs = 0;
  options.lr_step_epochs = 3;
  CHECK(Schedule(options, 1, 10).at(2.9) == 1);
  CHECK(Schedule(options, 1, 10).at(3) == Approx(0.1));
  CHECK(Schedule(options, 1, 10).at(9.5) == Approx(1e-3));
}

}  // namespace shakedown::training
