#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace shakedown {

/// This host's; "unknown" where it has none.
inline std::string host_name() {
  std::array<char, 256> name{"unknown"};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace shakedown
