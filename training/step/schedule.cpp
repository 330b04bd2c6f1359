#include "training/step/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/options.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, ScheduleOptions& values) {
  options.add("--schedule", values.schedule, "learning rate over the epochs")
      .one_of({"constant", "step", "cosine"})
      .only_with({"--epochs"});
  options
      .add("--lr-warmup-epochs", values.lr_warmup_epochs,
           "epochs of linear learning-rate warm-up, before the schedule")
      .at_least(0)
      .only_with({"--epochs"})
      .metavar("EPOCHS");
  options.add("--lr-step-epochs", values.lr_step_epochs, "epochs between two steps of the schedule")
      .at_least(1)
      .only_where("--schedule", {"step"});
  options
      .add("--lr-step-factor", values.lr_step_factor,
           "factor that multiplies the learning rate at each step of the schedule")
      .at_least(0)
      .only_where("--schedule", {"step"});
}

double Schedule::at(double epoch) const {
  const double warmup = options_.lr_warmup_epochs;
  // a fraction of the first step is never 0: the first update counts
  if (epoch < warmup) return learning_rate_ * std::max(epoch / warmup, 1e-3);
  if (options_.schedule == "cosine") {
    const double progress = std::clamp((epoch - warmup) / (epochs_ - warmup), 0.0, 1.0);
    return learning_rate_ * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  if (options_.schedule == "step")
    return learning_rate_ *
           std::pow(options_.lr_step_factor, std::floor(epoch / options_.lr_step_epochs));
  return learning_rate_;
}

}  // namespace shakedown::training
