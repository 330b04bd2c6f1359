// Values that the kernel reports in files such as /proc/meminfo.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

namespace shakedown {

/// The value in kB that follows `key` ("MemAvailable:"), in bytes; `otherwise` if there is none.
inline double proc_bytes(const std::string& file, const std::string& key, double otherwise = 0) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key, 0) == 0) return std::strtod(line.c_str() + key.size(), nullptr) * 1024;
  return otherwise;
}

}  // namespace shakedown
