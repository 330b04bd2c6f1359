// The host memory that this process may use: the machine's, less where a control group bounds it.
#pragma once

#include <string>

#include "common/device.hpp"

namespace shakedown {

/// Available memory and its limit: of /proc/meminfo and of every memory control group
/// (v1 or v2) around this process, the least. Slurm's --mem and containers are such groups; pages
/// of files that a group has not used for a while count as available, as the kernel drops them.
/// `root` is where the machine's file system is mounted.
MemoryInfo host_memory(const std::string& root = "");

}  // namespace shakedown
