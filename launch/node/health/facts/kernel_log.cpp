#include "launch/node/health/facts/kernel_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <regex>
#include <sstream>

namespace shakedown::node {
namespace {

/// Messages as /dev/kmsg has them; a read gives one, of a file in its place many.
std::optional<std::string> messages_in(const std::string& file) {
  const int in = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (in < 0) return std::nullopt;
  std::string messages;
  std::array<char, 8192> buffer;
  for (;;) {
    const ssize_t bytes = read(in, buffer.data(), buffer.size());
    if (bytes > 0) messages.append(buffer.data(), static_cast<std::size_t>(bytes));
    // EPIPE: overwritten since; the next read continues with what is there.
    if (bytes == 0 || (bytes < 0 && errno != EPIPE && errno != EINTR)) break;
  }
  close(in);
  if (messages.empty()) return std::nullopt;  // refused, or /dev/null in its place
  return messages;
}

}  // namespace

std::optional<std::vector<KernelEvent>> read_kernel_events(const std::string& file,
                                                           double uptime_s) {
  const auto messages = messages_in(file);
  if (!messages) return std::nullopt;
  static const std::regex pattern(
      R"(^\d+,\d+,(\d+),[^;]*;.*?(S?)Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+),?\s*(.*)$)",
      std::regex::icase);
  std::vector<KernelEvent> events;
  std::istringstream in(*messages);
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (line.find("id (PCI:") == std::string::npos || !std::regex_match(line, match, pattern))
      continue;
    events.push_back({uptime_s - std::strtod(match[1].str().c_str(), nullptr) / 1e6,
                      match[2].length() > 0, match[3], std::atoi(match[4].str().c_str()),
                      match[5]});
  }
  return events;
}

}  // namespace shakedown::node
