// The scalars of a training step that live on the device, so that a step needs no host.
#pragma once

#include <cstdint>

namespace shakedown::training {

struct StepScalars {
  float learning_rate = 0;
  float loss_scale = 1;
  std::int32_t finite = 1;         // 0 once a non-finite gradient was seen in this step
  std::int32_t updates = 0;        // steps applied
  std::int32_t skipped = 0;        // steps skipped for non-finite gradients
  std::int32_t since_rescale = 0;  // steps applied since the loss scale last changed
  float clip = 1;                  // what the gradients of this step are multiplied by
  float grad_norm = 0;             // Euclidean norm of all gradients, before clipping; if measured
};

}  // namespace shakedown::training
