#pragma once

#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

namespace shakedown {

/// This host's; "unknown" where it has none.
inline std::string host_name() {
  std::array<char, 256> name{"unknown"};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Of this boot of the kernel: another on each machine and after each restart. Containers share
/// their machine's. "" where it cannot be read.
inline std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace shakedown
