#include "training/step/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, ScheduleOptions& values) {
  options.heading("Schedule");
  options
      .add("--schedule,--lr-scheduler", values.schedule,
           "learning-rate schedule, which begins after the warm-up, as torchvision's SequentialLR\n"
           "constant: --learning-rate\n"
           "step, multi-step: multiplied by --lr-step-factor at --lr-milestones\n"
           "cosine, polynomial: falls to --lr-min")
      .one_of({"constant", "step", "multi-step", "cosine", "polynomial"})
      .only_with({"--epochs"});
  options
      .add("--lr-min", values.lr_min,
           "learning rate at the end of the cosine or polynomial schedule")
      .at_least(0)
      .only_where("--schedule", {"cosine", "polynomial"});
  options
      .add("--lr-warmup,--lr-warmup-epochs", values.lr_warmup_epochs,
           "linear learning-rate warm-up, before the schedule begins: epochs, or updates as "
           "500steps")
      .at_least(0)
      .only_with({"--epochs"})
      .unit("steps", "--lr-warmup-steps")
      .metavar("EPOCHS|Nsteps");
  options.add("--lr-warmup-steps", values.lr_warmup_steps, "updates of --lr-warmup")
      .at_least(0)
      .only_with({"--epochs"})
      .not_with({"--lr-warmup"})
      .hidden();
  options
      .add("--lr-milestones", values.lr_milestones,
           "epochs after the warm-up at which the schedule steps down: 30,60,80 of multi-step, "
           "every:30 of step")
      .at_least(0)
      .only_where("--schedule", {"multi-step"})
      .unit("every:", "--lr-step-epochs")
      .default_text("every:30");
  options.add("--lr-step-epochs,--lr-step-size", values.lr_step_epochs, "every: of --lr-milestones")
      .at_least(1)
      .only_where("--schedule", {"step"})
      .hidden();
  options
      .add("--lr-step-factor,--lr-gamma", values.lr_step_factor,
           "factor that multiplies the learning rate at each step of the schedule")
      .at_least(0)
      .only_where("--schedule", {"step", "multi-step"});
  options.add("--lr-power", values.lr_power, "power of the polynomial schedule")
      .at_least(0)
      .only_where("--schedule", {"polynomial"});
}

namespace {

std::string text_of_milestones(const ScheduleOptions& options) {
  return fmt::format("--lr-milestones {}", fmt::join(options.lr_milestones, ","));
}

/// They are within the training.
void check_milestones(const ScheduleOptions& options, double warmup_epochs, double epochs) {
  const std::vector<double>& milestones = options.lr_milestones;
  if (milestones.empty() || warmup_epochs + milestones.back() < epochs) return;
  throw UsageError(
      fmt::format("{}: must be below --epochs {:g}{}", text_of_milestones(options), epochs,
                  warmup_epochs > 0 ? fmt::format(" less the warm-up's {:g}", warmup_epochs) : ""));
}

}  // namespace

void check_schedule(const ScheduleOptions& options, double learning_rate, int epochs) {
  const std::vector<double>& milestones = options.lr_milestones;
  if (options.schedule == "multi-step" && milestones.empty())
    throw UsageError("--schedule multi-step needs --lr-milestones");
  if (!std::is_sorted(milestones.begin(), milestones.end()))
    throw UsageError(text_of_milestones(options) + ": must rise");
  if (options.lr_warmup_epochs > epochs)
    throw UsageError(fmt::format("--lr-warmup {:g}: must be at most --epochs {}",
                                 options.lr_warmup_epochs, epochs));
  check_milestones(options, options.lr_warmup_epochs, epochs);
  if (options.lr_min > learning_rate)
    throw UsageError(fmt::format("--lr-min {:g}: must be at most --learning-rate {:g}",
                                 options.lr_min, learning_rate));
}

Schedule::Schedule(const ScheduleOptions& options, double learning_rate, double epochs,
                   long updates_per_epoch)
    : options_(options),
      learning_rate_(learning_rate),
      updates_per_epoch_(static_cast<double>(updates_per_epoch)),
      warmup_(options.lr_warmup_steps > 0 ? options.lr_warmup_steps
                                          : options.lr_warmup_epochs * updates_per_epoch_),
      total_(epochs * updates_per_epoch_) {
  if (options.lr_warmup_steps > total_)
    throw UsageError(
        fmt::format("--lr-warmup {}steps: must be at most {:g}, the training's updates "
                    "({} per epoch)",
                    options.lr_warmup_steps, total_, updates_per_epoch));
  check_milestones(options, warmup_ / updates_per_epoch_, epochs);
}

double Schedule::falling_to_min(double share) const {
  return options_.lr_min + (learning_rate_ - options_.lr_min) * share;
}

double Schedule::at(long update) const {
  const auto u = static_cast<double>(update);
  // a fraction of the first step is never 0: the first update counts
  if (u < warmup_) return learning_rate_ * std::max(u / warmup_, 1e-3);
  const double epoch = (u - warmup_) / updates_per_epoch_;  // since the warm-up
  const double progress = u < total_ ? (u - warmup_) / (total_ - warmup_) : 1;
  if (options_.schedule == "cosine")
    return falling_to_min((1 + std::cos(std::numbers::pi * progress)) / 2);
  if (options_.schedule == "polynomial")
    return falling_to_min(std::pow(1 - progress, options_.lr_power));
  if (options_.schedule == "step")
    return learning_rate_ *
           std::pow(options_.lr_step_factor, std::floor(epoch / options_.lr_step_epochs));
  if (options_.schedule == "multi-step") {
    const auto& milestones = options_.lr_milestones;
    const auto reached = std::count_if(milestones.begin(), milestones.end(),
                                       [&](double milestone) { return epoch >= milestone; });
    return learning_rate_ * std::pow(options_.lr_step_factor, static_cast<double>(reached));
  }
  return learning_rate_;
}

}  // namespace shakedown::training
