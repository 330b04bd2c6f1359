#include "common/output_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/error.hpp"

namespace shakedown {
namespace {

bool is_device(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
}

/// What is opened: a device or pipe itself, else a file beside the one that the path leads to.
struct Target {
  explicit Target(const std::string& path) {
    std::error_code none_yet;
    file = std::filesystem::canonical(path, none_yet).string();
    if (none_yet) file = path;
    opened = is_device(file) ? file : file + ".partial";
  }
  bool beside() const { return opened != file; }
  std::string file, opened;
};

}  // namespace

void check_writable(const std::string& path) {
  const Target target(path);
  if (!std::ofstream(target.opened, std::ios::binary | std::ios::trunc))
    throw UsageError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  if (target.beside()) std::remove(target.opened.c_str());
}

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const Target target(path);
  std::ofstream out(target.opened, std::ios::binary | std::ios::trunc);
  if (out) write(out);
  out.close();
  if (!out || (target.beside() && std::rename(target.opened.c_str(), target.file.c_str()) != 0)) {
    const std::string why = std::strerror(errno);
    if (target.beside()) std::remove(target.opened.c_str());
    throw InconclusiveError(fmt::format("{}: cannot be written: {}", path, why));
  }
}

}  // namespace shakedown
