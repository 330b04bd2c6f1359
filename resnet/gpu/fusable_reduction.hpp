// A reduction that the kernel which computes its input can run in its epilogue.
#pragma once

#include <string>

#include "resnet/gpu/gram_kernels.hpp"
#include "resnet/memory_plan.hpp"
#include "resnet/shapes.hpp"
#include "resnet/work_log.hpp"

namespace shakedown::gpu {

/// A unit's backward reduction over the gradient of its output (ReLU mask, the norm's sums), as the
/// convolution that computes this gradient sees it: its data-gradient kernel can run the reduction
/// in its epilogue (fused), or the reduction runs after it (unfused).
class FusableReduction {
 public:
  virtual ~FusableReduction() = default;
  /// In the cache of timed choices.
  virtual std::string name() const = 0;
  /// Whether this convolution's data-gradient kernel can run it and, with `through_norm`, compute
  /// the gradient through the convolution's norm first.
  virtual bool can_fuse(const ConvShape& conv, bool through_norm) const = 0;
  /// Enqueues random data for every input but the gradient, for timing.
  virtual void randomise_inputs() const = 0;
  /// Enqueues the reduction alone; the gradient is in its slot.
  virtual void run_unfused() = 0;
  /// Enqueues the data gradient and the reduction as one kernel; the slot gets the masked gradient.
  virtual void run_fused(const GradientProduct& product, const Work& convolution) = 0;

  /// Whether run_gram() and output_sums() are there for this convolution.
  virtual bool can_use_gram(const ConvShape& /*conv*/) const { return false; }
  /// Enqueues the gradient through the Gram matrix and the reduction as one kernel (in two
  /// products: what is left after g (a w)). `y` is the convolution's input, `g` the gradient of the
  /// normalised z.
  virtual void run_gram(const GramMatrices& /*matrices*/, const void* /*y*/, const void* /*g*/) {}
  /// Where the unit's forward pass leaves, from now on, each channel's sum of its output in
  /// training. Called before the plan is placed.
  virtual const Slot* output_sums() { return nullptr; }

  /// The convolution enqueues it, fused or unfused; otherwise the unit does.
  bool convolution_runs = false;
};

}  // namespace shakedown::gpu
