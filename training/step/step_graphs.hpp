// A rank's training step as CUDA graphs, so that the host asks for it in one call.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "training/exchange/timeline.hpp"

namespace shakedown::training {

/// A step has parts, between which its batches are loaded: a graph each. A step that is traced has
/// graphs of its own, which record the timeline's events. Everything that a graph reads and writes
/// must stay where it is for as long as this lives.
class StepGraphs {
 public:
  /// `ranks` exchange in the step.
  StepGraphs(Device& device, Stream& compute, Communicator& ranks, Timeline& timeline)
      : device_(device), compute_(compute), ranks_(ranks), timeline_(timeline) {}

  /// Whether there are graphs of such a step as is asked for now, traced or not.
  bool captured() const { return !graphs_[timeline_.tracing() ? 1 : 0].empty(); }
  /// Captures them, of what `enqueue(part)` enqueues. It must have run once before: libraries load
  /// and connect what they need when they are first used. Collective.
  void capture(int parts, const std::function<void(int part)>& enqueue);
  void launch(int part);
  /// Something will not stay where it is.
  void drop() { graphs_ = {}; }

 private:
  struct Part {
    std::unique_ptr<Graph> graph;
    Marks marks;
  };
  std::vector<Part>& graphs() { return graphs_[timeline_.tracing() ? 1 : 0]; }

  Device& device_;
  Stream& compute_;
  Communicator& ranks_;
  Timeline& timeline_;
  std::array<std::vector<Part>, 2> graphs_;  // by whether they are traced
};

}  // namespace shakedown::training
