// The times of a step's calls, by layer and by kernel, and how near that is to what the device
// can do. Pure functions of a log.
#pragma once

#include <string>
#include <vector>

#include "resnet/architecture.hpp"
#include "resnet/recorder.hpp"

namespace shakedown::training {

/// The calls of one step with their median times, from the log of this many consecutive like
/// steps. Throws InternalError where they are not alike.
std::vector<TimedWork> median_step(const std::vector<TimedWork>& works, int steps);

/// The median over the steps of all their calls' time together: where something else now and then
/// holds a call up, that is more than the sum of their medians.
double median_sum_ms(const std::vector<TimedWork>& works, int steps);

/// Sums over some calls of one step.
struct WorkSum {
  int calls = 0;
  double ms = 0;
  double flop = 0;
  double bytes = 0;
  // The least time by the roofs: a call takes max(flop / matrix rate, bytes / copy bandwidth).
  double compute_roof_ms = 0;  // of the calls that the matrix rate holds
  double memory_roof_ms = 0;   // of the others

  void add(const TimedWork& timed, const Roofs& roofs);
  double roof_ms() const { return compute_roof_ms + memory_roof_ms; }
  /// The roof that most of roof_ms() stands under: compute or memory.
  const char* roof() const { return compute_roof_ms > memory_roof_ms ? "compute" : "memory"; }
  double roof_share() const { return roof_ms() / ms; }
  double tflops() const { return flop / ms / 1e9; }
  double gbs() const { return bytes / ms / 1e6; }
};

struct LayerTime {
  std::string layer;  // torchvision's name (layer1.0.conv1: with the norm and whatever else is done
                      // to its output), input or optimizer
  WorkSum sum;
  double forward_ms = 0;
  double backward_ms = 0;

  bool is_of_network() const { return forward_ms + backward_ms > 0; }
};
/// In the order in which the step comes to them first. All of `step` is some layer's.
std::vector<LayerTime> layer_times(const std::vector<TimedWork>& step, const ParameterTable& table,
                                   const Roofs& roofs);

/// Steps of one rank, call by call.
struct StepCalls {
  std::vector<TimedWork> calls;  // of one step, median times
  int logged_steps = 0;
  double step_ms = 0;         // median without the log
  double logged_step_ms = 0;  // and with it
  double calls_ms = 0;        // of these steps, all calls together: the median
  Roofs roofs;
  std::string rest;  // parts of a step that no call covers
};

/// The calls of one kernel.
struct KernelTime {
  std::string kernel;
  double bytes_per_call = 0;  // 0: of any size
  double flop_per_call = 0;
  WorkSum sum;
};
/// Apart by the bytes and FLOP of a call; the most time first.
std::vector<KernelTime> kernel_times(const std::vector<TimedWork>& step, const Roofs& roofs);
}  // namespace shakedown::training
