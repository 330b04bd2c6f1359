#include "launch/node/health/facts/kernel_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "launch/node/health/facts/json_fields.hpp"

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

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  return small;
}

/// Takes a decimal number from the front of a text.
template <class Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}
bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

/// Of "0000:3b:00.0 ..." in small letters "0000:3b:00", at the front of the text; else empty.
std::string pci_id_at(std::string_view text) {
  std::size_t end = 0;
  const auto digits = [&](std::size_t least, std::size_t most) {
    const std::size_t start = end;
    while (end < text.size() && is_hex(text[end])) ++end;
    return end - start >= least && end - start <= most;
  };
  const auto colon = [&] { return end < text.size() && text[end] == ':' && ++end; };
  const bool found = digits(4, 8) && colon() && digits(2, 2) && colon() && digits(2, 2);
  return found ? std::string(text.substr(0, end)) : "";
}
/// The first one in a text.
std::string pci_id_in(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!is_hex(text[at]) || (at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]))))
      continue;
    if (std::string id = pci_id_at(text.substr(at)); !id.empty()) return id;
  }
  return "";
}

/// The header of a message: "4,1234,98000000,-;". Others, "c" for a continued one, may follow.
struct Header {
  unsigned level = 0;
  std::uint64_t sequence = 0, time_us = 0;
};
bool take_header(std::string_view& line, Header& header) {
  Header read;
  std::string_view rest = line;
  if (!take_number(rest, read.level) || !take(rest, ",") || !take_number(rest, read.sequence) ||
      !take(rest, ",") || !take_number(rest, read.time_us))
    return false;
  const auto end = rest.find(';');
  if (end == rest.npos) return false;
  header = read;
  header.level &= 7;  // above it: the facility
  line = rest.substr(end + 1);
  return true;
}

/// "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 95, pid=7062, Uncontained": of an instance of MIG the
/// parenthesis has more than the device, of an old driver not "PCI:".
std::optional<KernelEvent> xid_in(std::string_view text, std::string_view small) {
  constexpr std::string_view kXid = "xid (";
  const auto at = small.find(kXid);
  if (at == small.npos) return std::nullopt;
  KernelEvent event{0, Kind::not_understood, "", 0, std::string(text.substr(0, kMostText))};
  std::string_view rest = small.substr(at + kXid.size());
  take(rest, "pci:");
  event.pci_id = pci_id_at(rest);
  const auto close = rest.find(')');
  if (event.pci_id.empty() || close == rest.npos) return event;
  std::string_view words = text.substr(text.size() - rest.size());
  const auto instance = words.substr(0, close).find(' ');
  const std::string of = instance == words.npos || instance > close
                             ? ""
                             : std::string(words.substr(instance + 1, close - instance - 1)) + ": ";
  words.remove_prefix(close + 1);
  take(words, ":");
  while (take(words, " ")) {
  }
  int code = 0;
  if (!take_number(words, code)) return event;
  take(words, ",");
  while (take(words, " ")) {
  }
  event.kind = at > 0 && small[at - 1] == 's' ? Kind::sxid : Kind::xid;
  event.code = code;
  event.text = (of + std::string(words)).substr(0, kMostText);
  return event;
}

/// What the driver writes at the level of errors and is none.
constexpr std::string_view kHarmless[] = {
    "nvrm: loading nvidia", "nvrm: gpu at pci:", "nvrm: gpu board serial number",
    "nvrm: persistence mode is deprecated", "nvrm: applied patches"};

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

std::optional<KernelEvent> event_in(std::string_view text, unsigned level) {
  const std::string small = in_small_letters(text);
  if (auto xid = xid_in(text, small)) return xid;
  const auto kind = kind_of(small, level);
  if (!kind) return std::nullopt;
  return KernelEvent{0, *kind, pci_id_in(small), 0, std::string(text.substr(0, kMostText))};
}

}  // namespace

FIELDS_OF(KernelEvent, age_s, kind, pci_id, code, text, sequence)
FIELDS_OF(KernelLog, events, reaches_back_s, first_sequence, last_sequence)

Json to_json(const std::vector<KernelEvent>& events) { return written(events); }
std::vector<KernelEvent> kernel_events_of(const Json& json) {
  return read_as<std::vector<KernelEvent>>(json);
}
Json to_json(const KernelLog& log) { return written(log); }
KernelLog kernel_log_of(const Json& json) { return read_as<KernelLog>(json); }

std::optional<KernelLog> read_kernel_log(const std::string& file, double uptime_s) {
  KernelLog log;
  bool is_log = false;
  double age_s = 0;
  std::istringstream in(messages_in(file));
  for (std::string line; std::getline(in, line);) {
    std::string_view text = line;
    if (text.starts_with(' ')) continue;  // a key of the message before
    Header header{kError, log.last_sequence, 0};
    if (take_header(text, header)) {
      age_s = uptime_s - static_cast<double>(header.time_us) / 1e6;
      log.last_sequence = header.sequence;
      if (!std::exchange(is_log, true)) {
        log.first_sequence = header.sequence;
        log.reaches_back_s = age_s;
      }
    }
    if (auto event = event_in(text, header.level)) {
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

}  // namespace shakedown::node
