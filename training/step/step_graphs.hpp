// A rank's training step as CUDA graphs, so that the host enqueues it in one call.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "training/exchange/timeline.hpp"

namespace shakedown::training {

/// A graph per micro-batch, between which its batches are loaded. A step that is traced has graphs
/// of its own, which record the timeline's events. Everything that a graph reads and writes must
/// stay where it is for as long as this lives.
class StepGraphs {
 public:
  /// `ranks` exchange in the step.
  StepGraphs(Device& device, Stream& compute, Communicator& ranks, Timeline& timeline)
      : device_(device), compute_(compute), ranks_(ranks), timeline_(timeline) {}

  /// Whether there are graphs of the step that comes next, traced or not.
  bool captured() const { return !graphs_[timeline_.tracing() ? 1 : 0].empty(); }
  /// Captures them, of what `enqueue(micro_batch)` enqueues. It must have run once before:
  /// libraries load and connect what they need when they are first used. Collective.
  void capture(int micro_batches, const std::function<void(int micro_batch)>& enqueue);
  void launch(int micro_batch);
  /// Something will not stay where it is.
  void drop() { graphs_ = {}; }

 private:
  struct MarkedGraph {
    std::unique_ptr<Graph> graph;
    Marks marks;
  };
  std::vector<MarkedGraph>& graphs() { return graphs_[timeline_.tracing() ? 1 : 0]; }

  Device& device_;
  Stream& compute_;
  Communicator& ranks_;
  Timeline& timeline_;
  std::array<std::vector<MarkedGraph>, 2> graphs_;  // by whether they are traced
};

}  // namespace shakedown::training
