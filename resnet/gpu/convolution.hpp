// One direction of one convolution: cuDNN's plan for it, chosen and bound.
#pragma once

#include <optional>

#include "resnet/gpu/context.hpp"

namespace shakedown::gpu {

/// One direction of one convolution.
class Convolution {
 public:
  /// `layer` names it in the log.
  Convolution(GpuContext& context, ConvKind kind, const NormedConv& layer);

  /// False where cuDNN has no algorithm.
  bool exists() const { return !choice_.candidates.empty(); }
  /// Enough for every candidate.
  std::size_t workspace_bytes() const;
  /// Times the candidates, unless autotune is off or an equal convolution was timed: overwrites
  /// the buffers but the weights, which are those of the first step.
  void bind(const ConvBuffers& buffers, void* workspace);
  void run() const;
  const Work& work() const { return work_; }

 private:
  void tune(const ConvBuffers& buffers, void* workspace);

  GpuContext& context_;
  ConvKind kind_;
  ConvShape conv_;
  Work work_;
  ConvChoice& choice_;
  std::optional<BoundPlan> bound_;
};

}  // namespace shakedown::gpu
