// Operands made where they are used.
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node::gpu {

/// x[i] = the operand's element i.
void fill_operand(View x, const OperandRule& rule, cudaStream_t stream);

}  // namespace shakedown::node::gpu
