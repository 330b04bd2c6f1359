// The cores that stand for a GPU's SMs on the cpu backend.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace shakedown::node::cpu {

/// Of those that this thread may use, `most` at most.
std::vector<int> first_cores(int most);

/// Calls body with the position of each core in `cores`, all at once, each on a thread that is
/// bound to the core. Waits. The positions of those that could be bound: else body was not called.
std::vector<std::size_t> run_on_cores(std::span<const int> cores,
                                      const std::function<void(std::size_t)>& body);

}  // namespace shakedown::node::cpu
