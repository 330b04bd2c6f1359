// The largest batch that fits into memory. A plan returns the bytes of any batch, but takes a
// while.
#pragma once

#include <cstddef>
#include <functional>

namespace shakedown::training {

/// The largest of 1..most whose bytes are at most `limit`; 0 where none is. `bytes_of` does not
/// fall as batches grow; it is asked as seldom as it nearly is a straight line.
int largest_fitting(std::size_t limit, int most, const std::function<std::size_t(int)>& bytes_of);

}  // namespace shakedown::training
