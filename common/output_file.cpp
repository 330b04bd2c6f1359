#include "common/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/error.hpp"
#include "common/types.hpp"

namespace shakedown {
namespace {

/// The target of symbolic links, which may not exist yet.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::filesystem::path file = path;
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(file, ignored); ++i)
    file = file.parent_path() / std::filesystem::read_symlink(file, ignored);
  return file.string();
}

std::string partial_of(const std::string& file) { return file + ".partial"; }

/// Waits until the file, or the folder's list of files, is on the disk. What has no disk under it
/// (EINVAL) needs not wait.
bool synced(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool done = fsync(descriptor) == 0 || errno == EINVAL;
  const int why = errno;
  close(descriptor);
  errno = why;
  return done;
}

/// Renames what was written whole: after a crash there is the old file or the new one.
bool put_in_place(const std::string& partial, const std::string& file) {
  const std::string folder = std::filesystem::path(file).parent_path().string();
  return synced(partial) && std::rename(partial.c_str(), file.c_str()) == 0 &&
         synced(folder.empty() ? "." : folder);
}

std::string not_written(const Output& output, int why) {
  return fmt::format("{} {}: cannot be written: {}", output.option, output.path,
                     std::strerror(why));
}

}  // namespace

void check_distinct(const std::vector<Output>& outputs) {
  std::map<std::filesystem::path, const char*> seen;
  for (const Output& output : outputs) {
    if (output.path.empty() || is_written_itself(output.path)) continue;
    std::error_code ignored;
    const auto file = std::filesystem::weakly_canonical(
        std::filesystem::absolute(behind_links(output.path), ignored), ignored);
    const auto [other, is_new] = seen.emplace(file, output.option);
    if (!is_new)
      throw UsageError(fmt::format("{} {}: is the file of {} too; each needs its own",
                                   output.option, output.path, other->second));
  }
}

int make_folder_of(const std::string& path) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return error.value();
}

bool is_written_itself(const std::string& path) {
  // A standard stream may be a file, which others write too.
  if (path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/")) return true;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
}

void check_writable(const Output& output) {
  const std::string& path = output.path;
  const auto refuse = [&](int why) { throw UsageError(not_written(output, why)); };
  std::error_code ignored;
  if (path.ends_with('/') || std::filesystem::is_directory(path, ignored)) refuse(EISDIR);
  if (is_written_itself(path)) {  // opened once only: a pipe's reader would take that for the end
    if (access(path.c_str(), W_OK) != 0) refuse(errno);
    return;
  }
  const std::string file = behind_links(path);
  if (const int why = make_folder_of(file); why != 0) refuse(why);
  const std::string partial = partial_of(file);
  if (!std::ofstream(partial, std::ios::binary | std::ios::trunc)) refuse(errno);
  std::remove(partial.c_str());
}

void check_space(const std::string& folder, std::uint64_t bytes, const std::string& what) {
  struct statvfs system {};
  if (statvfs(folder.c_str(), &system) != 0)
    throw InconclusiveError(fmt::format("{}: {}: {}", what, folder, std::strerror(errno)));
  const std::uint64_t free = std::uint64_t{system.f_bavail} * system.f_frsize;
  if (free < bytes)
    throw InconclusiveError(fmt::format("{} needs {}, {} are free", what,
                                        readable_bytes(static_cast<double>(bytes)),
                                        readable_bytes(static_cast<double>(free))));
  if (system.f_files > 0 && system.f_favail == 0)  // some file systems have no fixed number
    throw InconclusiveError(fmt::format("{} needs an inode, none is free", what));
}

void check_space(const Output& output, std::uint64_t bytes) {
  if (output.path.empty() || is_written_itself(output.path)) return;
  const auto folder = std::filesystem::path(behind_links(output.path)).parent_path().string();
  check_space(folder.empty() ? "." : folder, bytes,
              fmt::format("{} {}", output.option, output.path));
}

void write_file(const Output& output, const std::function<void(std::ostream&)>& write) {
  const std::string& path = output.path;
  const bool itself = is_written_itself(path);
  const std::string file = itself ? path : behind_links(path);
  const std::string opened = itself ? path : partial_of(file);
  if (const int why = itself ? 0 : make_folder_of(file); why != 0)
    throw InconclusiveError(not_written(output, why));
  std::ofstream out(opened, std::ios::binary | (itself ? std::ios::app : std::ios::trunc));
  try {
    if (out) write(out);
  } catch (...) {
    if (!itself) std::remove(opened.c_str());
    throw;
  }
  out.close();
  if (!out || (!itself && !put_in_place(opened, file))) {
    const int why = errno;
    if (!itself) std::remove(opened.c_str());
    throw InconclusiveError(not_written(output, why));
  }
}

ExitCode if_printed(ExitCode code) {
  std::fflush(stdout);
  struct stat file {};
  const bool is_whole = std::ferror(stdout) == 0 || fstat(STDOUT_FILENO, &file) != 0 ||
                        S_ISFIFO(file.st_mode) || S_ISSOCK(file.st_mode);
  if (is_whole) return code;
  std::fputs("error: standard output cannot be written: what was printed is incomplete\n", stderr);
  return code == ExitCode::pass ? ExitCode::inconclusive : code;
}

}  // namespace shakedown
