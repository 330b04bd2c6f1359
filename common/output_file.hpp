// Files that are written whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "common/exit_code.hpp"

namespace shakedown {

/// A file that an option names; an empty path is none.
struct Output {
  const char* option;
  std::string path;
};

/// Throws UsageError when two options name one file, which each would overwrite.
void check_distinct(const std::vector<Output>& outputs);

/// Makes the folder that `path` lies in, and those above it. 0, or why that failed (errno): opening
/// the file would only find that there is no folder.
[[nodiscard]] int make_folder_of(const std::string& path);

/// Throws UsageError when the file cannot be written, or is a folder: before the work whose result
/// it is to hold. Makes its folder.
void check_writable(const Output& output);

/// Throws InconclusiveError where the file system of `folder` has fewer bytes, or no inode, free.
/// `what` needs them.
void check_space(const std::string& folder, std::uint64_t bytes, const std::string& what);
/// The same of where the file will be written.
void check_space(const Output& output, std::uint64_t bytes);

/// A device, a pipe or a standard stream: what was written is not replaced.
bool is_written_itself(const std::string& path);

/// `write` fills a file next to the one that the path leads to, which then takes its place; what
/// is_written_itself is appended to. Its folder is made. It is on the disk when this returns.
/// Throws InconclusiveError when that fails (disk full); then, and when `write` throws, there is no
/// new file.
void write_file(const Output& output, const std::function<void(std::ostream&)>& write);

/// `code`; inconclusive in place of a pass that standard output, a file, has not all of, and an
/// error line. A pipe's reader that has left needs nothing more.
ExitCode if_printed(ExitCode code);

}  // namespace shakedown
