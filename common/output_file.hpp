// Files that are written whole or not at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace shakedown {

/// Throws UsageError when a file cannot be made at `path`: before the work whose result it is to
/// hold.
void check_writable(const std::string& path);

/// `write` fills a file beside `path`, which then takes its place. Throws InconclusiveError when
/// that fails (disk full).
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);

}  // namespace shakedown
