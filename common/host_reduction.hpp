// Reductions of arrays in host memory: the arithmetic of collectives on the CPU.
#pragma once

#include <span>

#include "common/types.hpp"

namespace shakedown {

/// to[i] = `op` over inputs[0][i], inputs[1][i], ... in this order; `avg` divides the sum by the
/// number of inputs. Each input has to.count elements of to.type, and may be `to` itself. float16
/// and bfloat16 are computed in float32 and rounded once; averages of integers truncate toward
/// zero. Throws InternalError for 8-bit floating-point types.
void reduce_elements(Reduction op, std::span<const void* const> inputs, View to);

/// x[i] = x[i] / n, as the `avg` of reduce_elements divides.
void divide_elements(View x, int n);

}  // namespace shakedown
