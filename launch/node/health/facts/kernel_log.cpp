#include "launch/node/health/facts/kernel_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <regex>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown::node {
namespace {

using Kind = KernelEventKind;
constexpr std::size_t kMostText = 1000;
constexpr unsigned kError = 3;  // KERN_ERR; below it is worse

/// Messages as /dev/kmsg has them; a read gives one, of a file in its place many.
std::string messages_in(const std::string& file) {
  const int in = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (in < 0) return "";
  std::string messages;
  std::array<char, 8192> buffer;
  for (;;) {
    const ssize_t bytes = ::read(in, buffer.data(), buffer.size());
    if (bytes > 0) messages.append(buffer.data(), static_cast<std::size_t>(bytes));
    // EPIPE: overwritten since; the next read continues with what is there.
    if (bytes == 0 || (bytes < 0 && errno != EPIPE && errno != EINTR)) break;
  }
  close(in);
  return messages;  // empty: refused, or /dev/null in its place
}

std::string in_small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// The number of a message, how bad it is, and when it came.
struct Header {
  unsigned level = 0;
  unsigned long long sequence = 0, time_us = 0;
};
/// Takes one such as "4,1234,98000000,-;" from a message. Others, "c" for a continued one, may
/// follow.
bool take_header(std::string& line, Header& header) {
  Header read;
  const auto end = line.find(';');
  if (end == line.npos ||
      std::sscanf(line.c_str(), "%u,%llu,%llu", &read.level, &read.sequence, &read.time_us) != 3)
    return false;
  header = read;
  header.level &= 7;  // above it: the facility
  line.erase(0, end + 1);
  return true;
}

constexpr const char* kPciId = "([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?![0-9a-f])";

/// The first one in a text in small letters.
std::string pci_id_in(const std::string& small) {
  static const std::regex id(fmt::format("(?:^|[^0-9a-z]){}", kPciId));
  std::smatch match;
  return std::regex_search(small, match, id) ? match[1].str() : "";
}

/// What "Xid (PCI:0000:3b:00 GPU-I:05): 95, pid=7062, Uncontained" at this place has: of an
/// instance of MIG the parenthesis has more than the device, of an old driver not "PCI:".
void read_xid(const std::string& text, std::size_t at, KernelEvent& event) {
  static const std::regex xid(R"(xid \((?:pci:)?)" + std::string(kPciId) +
                                  R"((?:[^ )]*(?: ([^)]*))?\):? *(\d{1,9})(?!\d),? *)?)",
                              std::regex::icase);
  std::smatch match;
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
  const auto end = begin + std::min<std::ptrdiff_t>(text.end() - begin, kMostText);
  if (!std::regex_search(begin, end, match, xid, std::regex_constants::match_continuous)) return;
  event.pci_id = in_small_letters(match[1]);
  if (!match[3].matched) return;
  event.kind = at > 0 && (text[at - 1] == 's' || text[at - 1] == 'S') ? Kind::sxid : Kind::xid;
  event.code = std::stoi(match[3]);
  const std::string instance = match[2].matched ? match[2].str() + ": " : "";
  event.text = (instance + std::string(match[0].second, text.end())).substr(0, kMostText);
}

/// What the driver writes at the level of errors and is none.
constexpr std::string_view kHarmless[] = {
    "nvrm: loading nvidia", "nvrm: gpu at pci:", "nvrm: gpu board serial number",
    "nvrm: persistence mode is deprecated", "nvrm: applied patches"};

/// Whether the driver wrote it. A user chooses the names of a process and its file: "NAME[1]:
/// segfault at 0 ... in FILE[...]".
bool is_of_driver(const std::string& small) {
  static const std::regex of_process(R"(.{0,15}\[\d+\])");
  return (small.starts_with("nvrm:") || small.starts_with("nvidia")) &&
         !std::regex_search(small, of_process, std::regex_constants::match_continuous);
}

std::optional<Kind> kind_of(std::string_view small, unsigned level) {
  const auto has = [&](std::string_view words) { return small.find(words) != small.npos; };
  const bool of_kernel = small.starts_with("nvidia ") || small.starts_with("nvidia:");
  if (small.starts_with("nvidia-nvlink:") && has("nvlink core is being initialized"))
    return Kind::driver_loading;
  if (of_kernel && has("probe") && has("failed with error")) return Kind::probe_failed;
  if (!small.starts_with("nvrm:")) return std::nullopt;
  if (has("fallen off the bus")) return Kind::off_the_bus;
  if (has("rminitadapter failed") || has("rm_init_adapter failed")) return Kind::init_failed;
  if (has("probe routine failed") || (has("none of the nvidia") && has("initialized")))
    return Kind::probe_failed;
  const bool harmless = std::ranges::any_of(
      kHarmless, [&](std::string_view beginning) { return small.starts_with(beginning); });
  return level <= kError && !harmless ? std::optional(Kind::not_understood) : std::nullopt;
}

std::optional<KernelEvent> event_in(const std::string& text, unsigned level) {
  const std::string small = in_small_letters(text);
  KernelEvent event{0, Kind::not_understood, "", 0, text.substr(0, kMostText)};
  if (const auto at = small.find("xid ("); at != small.npos) {
    if (is_of_driver(small)) read_xid(text, at, event);
    return event;
  }
  if (!is_of_driver(small)) return std::nullopt;
  const auto kind = kind_of(small, level);
  if (!kind) return std::nullopt;
  event.kind = *kind;
  event.pci_id = pci_id_in(small);
  return event;
}

}  // namespace

std::optional<KernelLog> read_kernel_log(const std::string& file, double uptime_s) {
  KernelLog log;
  bool is_log = false;
  double age_s = 0;
  std::istringstream in(messages_in(file));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(' ')) continue;  // a key of the message before
    Header header{kError, log.last_sequence, 0};
    if (take_header(line, header)) {
      age_s = uptime_s - static_cast<double>(header.time_us) / 1e6;
      log.last_sequence = header.sequence;
      if (!std::exchange(is_log, true)) {
        log.first_sequence = header.sequence;
        log.reaches_back_s = age_s;
      }
    }
    if (auto event = event_in(line, header.level)) {
      event->age_s = age_s;
      event->sequence = header.sequence;
      log.events.push_back(std::move(*event));
    }
  }
  return is_log ? std::optional(std::move(log)) : std::nullopt;
}

bool same_pci_device(const std::string& one, const std::string& other) {
  const auto place_of = [](const std::string& id) {
    unsigned domain = 0, bus = 0, device = 0;
    const int read = std::sscanf(id.c_str(), "%x:%x:%x", &domain, &bus, &device);
    return std::tuple(read == 3, domain, bus, device);
  };
  return std::get<0>(place_of(one)) && place_of(one) == place_of(other);
}

KernelWatch::KernelWatch(std::string pci_id, std::string root)
    : pci_id_(std::move(pci_id)), root_(std::move(root)), start_s_(uptime_s({root_, {}})) {
  if (const auto log = read_kernel_log(kmsg(), start_s_)) last_ = log->last_sequence;
}

std::optional<std::vector<KernelEvent>> KernelWatch::events() {
  const double now_s = uptime_s({root_, {}});
  auto log = read_kernel_log(kmsg(), now_s);
  if (!log) return std::nullopt;
  // By their numbers: the clock of messages drifts from the uptime's, by a minute in some months.
  const auto is_known = [&](const KernelEvent& event) {
    return last_ ? event.sequence <= *last_ : event.age_s > now_s - start_s_;
  };
  const auto is_ours = [&](const KernelEvent& event) {
    if (event.kind == KernelEventKind::sxid) return true;
    if (!event.pci_id.empty()) return same_pci_device(event.pci_id, pci_id_);
    return event.kind != KernelEventKind::not_understood ||
           event.text.find("Xid") != event.text.npos;
  };
  std::erase_if(log->events,
                [&](const KernelEvent& event) { return is_known(event) || !is_ours(event); });
  const bool has_gap = last_ ? log->first_sequence > *last_ + 1
                             : !log->is_whole() && log->reaches_back_s < now_s - start_s_;
  last_ = log->last_sequence;
  if (has_gap && log->events.empty()) return std::nullopt;
  return std::move(log->events);
}

}  // namespace shakedown::node
