#include "common/record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/error.hpp"

namespace shakedown {
namespace {

/// Whether the last line was cut short: by a full disk, or a copy made while it was written.
bool is_cut(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream in(path, std::ios::binary);
  in.seekg(-1, std::ios::end);  // fails where the file is empty
  return in && in.get() != '\n';
}

}  // namespace

Record::Record(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0)
    throw UsageError(fmt::format("--record {}: cannot be written: {}", path, std::strerror(errno)));
  cut_ = is_cut(path);
}

Record::~Record() {
  if (file_ >= 0) close(file_);
}

void Record::write(const std::string& kind, const Json& fields) {
  if (file_ < 0) return;
  Json line = {{"kind", kind}};
  line.update(fields);
  const std::string text = (std::exchange(cut_, false) ? "\n" : "") +
                           line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0)
      throw InconclusiveError(
          fmt::format("record {}: cannot be written: {}", path_, std::strerror(errno)));
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace shakedown
