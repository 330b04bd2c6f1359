// The cores that stand for a GPU's SMs on the cpu backend.
#pragma once

#include <functional>
#include <vector>

namespace shakedown::node::cpu {

/// Those that this thread may use, in order, `most` at most.
std::vector<int> allowed_cores(int most);

/// Calls body on a thread that is bound to the core, and waits for it. Whether it could be bound:
/// else body was not called.
bool run_on_core(int core, const std::function<void()>& body);

}  // namespace shakedown::node::cpu
