// A file in memory, for functions that take a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string>

namespace shakedown::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> content)
      : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (write(descriptor_, content.data(), content.size()) != static_cast<ssize_t>(content.size()))
      __builtin_trap();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace shakedown::fuzz
