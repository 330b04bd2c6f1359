// The cores of this host that the process was given.
#pragma once

#include <vector>

namespace shakedown {

/// Those that this thread may run on, in order; none where the system does not say.
std::vector<int> allowed_cores();

/// Whether this host has cores that this thread may not run on.
bool has_other_cores();

}  // namespace shakedown
