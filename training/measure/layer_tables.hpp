// The measurements of --layers and --kernels as tables for people.
#pragma once

#include <string>
#include <vector>

#include "training/measure/layer_times.hpp"

namespace shakedown::training {

/// Steps of one rank, call by call.
struct StepCalls {
  std::vector<TimedWork> calls;  // of one step, median times
  int logged_steps = 0;
  double step_ms = 0;         // median without the log
  double logged_step_ms = 0;  // and with it
  double calls_ms = 0;        // of these steps, all calls together: the median
  Roofs roofs;
};

/// `precision`: of the matrix product.
std::string text_of_roofs(const StepCalls& step, const std::string& precision);
std::string table_of_layers(const StepCalls& step, const ParameterTable& table);
std::string table_of_kernels(const StepCalls& step);
/// The calls' sum compared with the step; `rest` names what no call covers.
std::string account_of(const StepCalls& step, const std::string& rest);

}  // namespace shakedown::training
