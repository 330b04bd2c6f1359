// Files that are written whole or not at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace shakedown {

/// Throws UsageError when `path` cannot be written, or is a folder: before the work whose result it
/// is to hold.
void check_writable(const std::string& path);

/// A device, a pipe or a standard stream: what was written is not replaced.
bool is_written_itself(const std::string& path);

/// `write` fills a file beside the one that `path` leads to, which then takes its place; what
/// is_written_itself is appended to. Throws InconclusiveError when that fails (disk full).
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);

}  // namespace shakedown
