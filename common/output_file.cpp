#include "common/output_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "common/error.hpp"

namespace shakedown {
namespace {

std::string partial_of(const std::string& path) { return path + ".partial"; }

}  // namespace

void check_writable(const std::string& path) {
  const std::string partial = partial_of(path);
  if (!std::ofstream(partial, std::ios::binary | std::ios::trunc))
    throw UsageError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  std::remove(partial.c_str());
}

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const std::string partial = partial_of(path);
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  if (out) write(out);
  out.close();
  if (!out || std::rename(partial.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    std::remove(partial.c_str());
    throw InconclusiveError(fmt::format("{}: cannot be written: {}", path, why));
  }
}

}  // namespace shakedown
