// Schedules against the closed forms of torch.optim.lr_scheduler.
#include "training/step/schedule.hpp"

#include <cmath>
#include <numbers>

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

constexpr long kUpdates = 50;  // per epoch
constexpr double kEpochs = 10;

double rate_at(const ScheduleOptions& options, double epoch) {
  return Schedule(options, 0.4, kEpochs, kUpdates).at(std::lround(epoch * kUpdates));
}

}  // namespace

TEST_CASE("the rate warms up by epochs or by updates", "[schedule]") {
  ScheduleOptions options;
  CHECK(rate_at(options, 7.3) == 0.4);
  options.lr_warmup_epochs = 2;
  CHECK(rate_at(options, 0) == Approx(0.4e-3));
  CHECK(rate_at(options, 1) == Approx(0.2));
  CHECK(rate_at(options, 1.98) == Approx(0.4 * 0.99));
  CHECK(rate_at(options, 2) == 0.4);
  options = {};
  options.lr_warmup_steps = 20;
  CHECK(Schedule(options, 0.4, kEpochs, kUpdates).at(5) == Approx(0.1));
  CHECK(Schedule(options, 0.4, kEpochs, kUpdates).at(20) == 0.4);
}

TEST_CASE("cosine and polynomial fall to the floor from the warm-up's end", "[schedule]") {
  ScheduleOptions options;
  options.schedule = GENERATE("cosine", "polynomial");
  options.lr_warmup_epochs = GENERATE(0.0, 2.0);
  options.lr_min = GENERATE(0.0, 0.05);
  options.lr_power = GENERATE(1.0, 2.0);
  for (double epoch = options.lr_warmup_epochs; epoch <= kEpochs; epoch += 0.5) {
    const double progress =
        (epoch - options.lr_warmup_epochs) / (kEpochs - options.lr_warmup_epochs);
    const double share = options.schedule == "cosine"
                             ? (1 + std::cos(std::numbers::pi * progress)) / 2
                             : std::pow(1 - progress, options.lr_power);
    CHECK(rate_at(options, epoch) ==
          Approx(options.lr_min + (0.4 - options.lr_min) * share).margin(1e-12));
  }
  CHECK(rate_at(options, kEpochs + 1) == Approx(options.lr_min).margin(1e-12));
}

TEST_CASE("the warm-up and the milestones after it are within the training", "[schedule]") {
  ScheduleOptions options;
  options.schedule = GENERATE("cosine", "polynomial", "constant");
  options.lr_min = 0.05;
  options.lr_warmup_epochs = kEpochs;  // all of it
  CHECK(rate_at(options, kEpochs - 1) == Approx(0.36));
  CHECK(rate_at(options, kEpochs) == Approx(options.schedule == "constant" ? 0.4 : 0.05));
  options.lr_warmup_epochs = 0;
  options.lr_warmup_steps = 500;
  CHECK(rate_at(options, kEpochs) == Approx(options.schedule == "constant" ? 0.4 : 0.05));
  options.lr_warmup_steps = 501;
  CHECK_THROWS_WITH(rate_at(options, 0),
                    ContainsSubstring("--lr-warmup 501steps: must be at most 500"));

  options = {};
  options.schedule = "multi-step";
  options.lr_milestones = {3, 8};
  options.lr_warmup_steps = 99;
  CHECK_NOTHROW(rate_at(options, 0));
  options.lr_warmup_steps = 100;
  CHECK_THROWS_WITH(rate_at(options, 0),
                    ContainsSubstring("--lr-milestones 3,8: must be below --epochs 10 less the "
                                      "warm-up's 2"));
}

TEST_CASE("steps begin after the warm-up, as SequentialLR's of torch 1.13", "[schedule]") {
  ScheduleOptions options;
  options.lr_warmup_epochs = 2;
  options.schedule = "step";
  options.lr_step_epochs = 2;
  const auto rates = [&] {  // of the last update of each of six epochs of one update
    const Schedule schedule(options, 0.01, 6, 1);
    return std::vector<double>{schedule.at(1), schedule.at(2), schedule.at(3), schedule.at(4),
                               schedule.at(5)};
  };
  const std::vector<double> torch{0.005, 0.01, 0.01, 0.001, 0.001};
  for (std::size_t i = 0; i < torch.size(); ++i) CHECK(rates()[i] == Approx(torch[i]));
  options.schedule = "multi-step";
  options.lr_milestones = {2};
  for (std::size_t i = 0; i < torch.size(); ++i) CHECK(rates()[i] == Approx(torch[i]));
}

TEST_CASE("steps are at whole epochs, or at milestones", "[schedule]") {
  ScheduleOptions options;
  options.schedule = "step";
  options.lr_step_epochs = 3;
  CHECK(rate_at(options, 2.98) == 0.4);
  CHECK(rate_at(options, 3) == Approx(0.04));
  CHECK(rate_at(options, 9.5) == Approx(0.4e-3));

  options.schedule = "multi-step";
  CHECK(rate_at(options, 9) == 0.4);
  options.lr_milestones = {3, 4.5, 8};
  options.lr_step_factor = 0.5;
  CHECK(rate_at(options, 2.98) == 0.4);
  CHECK(rate_at(options, 3) == Approx(0.2));
  CHECK(rate_at(options, 4.48) == Approx(0.2));
  CHECK(rate_at(options, 4.5) == Approx(0.1));
  CHECK(rate_at(options, 9.98) == Approx(0.05));
}

}  // namespace shakedown::training
