#include "common/output_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/error.hpp"

namespace shakedown {
namespace {

/// What links lead to, which may not be there yet.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::filesystem::path file = path;
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(file, ignored); ++i)
    file = file.parent_path() / std::filesystem::read_symlink(file, ignored);
  return file.string();
}

std::string partial_of(const std::string& file) { return file + ".partial"; }

}  // namespace

bool is_written_itself(const std::string& path) {
  // A standard stream may be a file, which others write too.
  if (path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/")) return true;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
}

void check_writable(const std::string& path) {
  const auto refuse = [&](int why) {
    throw UsageError(fmt::format("{}: cannot be written: {}", path, std::strerror(why)));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse(EISDIR);
  if (is_written_itself(path)) {  // opened once only: a pipe's reader would take that for the end
    if (access(path.c_str(), W_OK) != 0) refuse(errno);
    return;
  }
  const std::string partial = partial_of(behind_links(path));
  if (!std::ofstream(partial, std::ios::binary | std::ios::trunc)) refuse(errno);
  std::remove(partial.c_str());
}

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const bool itself = is_written_itself(path);
  const std::string file = itself ? path : behind_links(path);
  const std::string opened = itself ? path : partial_of(file);
  std::ofstream out(opened, std::ios::binary | (itself ? std::ios::app : std::ios::trunc));
  if (out) write(out);
  out.close();
  if (!out || (!itself && std::rename(opened.c_str(), file.c_str()) != 0)) {
    const std::string why = std::strerror(errno);
    if (!itself) std::remove(opened.c_str());
    throw InconclusiveError(fmt::format("{}: cannot be written: {}", path, why));
  }
}

}  // namespace shakedown
