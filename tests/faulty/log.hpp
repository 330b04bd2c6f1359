// FAULTY_LOG: what a preloaded library did, as one JSON object, renewed while the process works: a
// tool may end by a signal that runs no destructor.
#pragma once

#include <functional>
#include <string>

#include "tests/faulty/excitation.hpp"

namespace shakedown::faulty {

/// From the first call on a thread writes what `counts` returns into the file `path` whenever that
/// has changed, and the end of the process does. An empty path: nothing is written.
void keep_log(const std::string& path, const std::string& model,
              const std::function<Counts()>& counts);

}  // namespace shakedown::faulty
