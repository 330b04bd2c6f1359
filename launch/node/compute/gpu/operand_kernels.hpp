// Operands made where they are used.
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.hpp"
#include "launch/node/compute/operands.hpp"

namespace shakedown::node::gpu {

/// x[i] = the operand's element i. `transposed_rows`: of a matrix with this many rows, whose
/// transpose x is; 0: x is the matrix.
void fill_operand(View x, const OperandRule& rule, std::size_t transposed_rows,
                  cudaStream_t stream);

}  // namespace shakedown::node::gpu
