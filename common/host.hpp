// This host as its kernel describes it: name, cores, memory, files under /proc.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/device.hpp"

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

/// "Neoverse V2", "AMD EPYC 9654 96-Core Processor"; of an unknown processor of ARM its numbers; ""
/// where the kernel reports none. `root` is where the machine's file system is mounted.
std::string processor_model(const std::string& root = "");

// Values that the kernel reports in files such as /proc/meminfo.

/// The value in kB that follows `key` ("MemAvailable:"), in bytes; `otherwise` if there is none.
inline double proc_bytes(const std::string& file, const std::string& key, double otherwise = 0) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key, 0) == 0) return std::strtod(line.c_str() + key.size(), nullptr) * 1024;
  return otherwise;
}

// The host memory that this process may use: the machine's, less where a control group bounds it.

/// Available memory and its limit: of /proc/meminfo and of every memory control group
/// (v1 or v2) around this process, the least. Slurm's --mem and containers are such groups; pages
/// of files that a group has not used for a while count as available, as the kernel drops them.
/// `root` is where the machine's file system is mounted.
MemoryInfo host_memory(const std::string& root = "");

// The cores of this host that the process was given.

/// Those that this thread may run on, in order; none where the system does not say.
std::vector<int> allowed_cores();

/// Whether this host has cores that this thread may not run on.
bool has_other_cores();

}  // namespace shakedown
