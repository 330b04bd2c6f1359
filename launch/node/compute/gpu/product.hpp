// Operands made where they are used.
#pragma once

#include <cuda_runtime_api.h>

#include "common/types.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node::gpu {

/// The operand's rows, of `columns` elements, in this order.
void fill_operand(View x, std::int64_t columns, const OperandRule& rule, const LineOrder& order,
                  cudaStream_t stream);
/// Adds the elements in memory that are others.
void compare_operand(View x, std::int64_t columns, const OperandRule& rule, const LineOrder& order,
                     WordErrors* wrong, cudaStream_t stream);

}  // namespace shakedown::node::gpu
