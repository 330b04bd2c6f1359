// The learning rate over the course of a training run.
#pragma once

#include <string>
#include <vector>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct ScheduleOptions {
  std::string schedule = "constant";
  double lr_min = 0;
  double lr_warmup_epochs = 0;
  int lr_warmup_steps = 0;  // in the place of epochs, where not 0
  int lr_step_epochs = 30;
  double lr_step_factor = 0.1;
  std::vector<double> lr_milestones;  // epochs after the warm-up
  double lr_power = 2;
};
void declare_options(OptionSet& options, ScheduleOptions& values);
/// Throws UsageError where the options do not suit a training of this rate and length, as far as
/// that is known without its updates.
void check_schedule(const ScheduleOptions& options, double learning_rate, int epochs);

/// A function of the number of updates before the one that uses the rate, from 0 on, and of nothing
/// else: a run that is resumed needs no other state.
class Schedule {
 public:
  /// Throws UsageError where the warm-up, or a milestone after it, is beyond the training.
  Schedule(const ScheduleOptions& options, double learning_rate, double epochs,
           long updates_per_epoch);

  /// During the warm-up the rate rises linearly from nearly 0 (Goyal et al. 2017); its end is W.
  /// Then every schedule begins, as with torch's SequentialLR in torchvision's references, with T
  /// updates in all, in the closed forms of torch.optim.lr_scheduler:
  /// - constant;
  /// - step: times factor^floor(epochs since W / lr_step_epochs) (StepLR);
  /// - multi-step: times factor^(milestones reached since W) (MultiStepLR);
  /// - cosine: from the rate down to lr_min, times (1 + cos(pi (u - W) / (T - W))) / 2
  ///   (CosineAnnealingLR; Loshchilov & Hutter 2017);
  /// - polynomial: the same, times (1 - (u - W) / (T - W))^power (PolynomialLR; power 2 as MLPerf's
  ///   LARS reference, mlcommons/training image_classification/tensorflow2/lars_util.py, whose
  ///   decay is one step longer).
  double at(long update) const;

 private:
  double falling_to_min(double share) const;

  ScheduleOptions options_;
  double learning_rate_;
  double updates_per_epoch_;
  double warmup_;  // updates
  double total_;   // updates
};

}  // namespace shakedown::training
