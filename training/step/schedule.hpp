// The learning rate over the course of a training run.
#pragma once

#include <string>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct ScheduleOptions {
  std::string schedule = "constant";
  double lr_warmup_epochs = 0;
  int lr_step_epochs = 30;
  double lr_step_factor = 0.1;
};
void declare_options(OptionSet& options, ScheduleOptions& values);

class Schedule {
 public:
  Schedule(const ScheduleOptions& options, double learning_rate, double epochs)
      : options_(options), learning_rate_(learning_rate), epochs_(epochs) {}

  /// `epoch` counts from 0 and has a fraction. During the warm-up the rate rises linearly from
  /// nearly 0 (Goyal et al. 2017). Then: constant; step: multiplied by the factor every
  /// lr_step_epochs; cosine: half a cosine down to 0 at the end (Loshchilov & Hutter 2017).
  double at(double epoch) const;

 private:
  ScheduleOptions options_;
  double learning_rate_;
  double epochs_;
};

}  // namespace shakedown::training
