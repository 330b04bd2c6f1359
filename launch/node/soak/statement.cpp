#include "launch/node/soak/statement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <vector>

namespace shakedown::node {
namespace {

/// "2.1e6", "130": two digits where there are more than five.
std::string readable_count(double count) {
  if (count < 1e5) return fmt::format("{:.0f}", count);
  const std::string text = fmt::format("{:.1e}", count);  // "2.1e+06"
  const std::size_t e = text.find('e');
  return text.substr(0, e + 1) + std::to_string(std::stoi(text.substr(e + 1)));
}

}  // namespace

double rate_bound(double gpu_hours) {
  return gpu_hours > 0 ? 3 / gpu_hours : std::numeric_limits<double>::infinity();
}

std::string readable_decimal_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 6) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string statement_of(const Work& work, double wrong, const std::string& device) {
  std::vector<std::string> parts;
  if (work.products > 0) {
    parts.push_back(readable_count(work.products) + " products");
    if (work.self_compared > 0)
      parts.back() += fmt::format(", of which {} were compared only with themselves",
                                  readable_count(work.self_compared));
  }
  if (work.probes > 0) parts.push_back(readable_count(work.probes) + " probes of processors");
  if (work.memory_bytes > 0)
    parts.push_back(readable_decimal_bytes(work.memory_bytes) + " of memory");
  if (work.copied_bytes > 0) parts.push_back(readable_decimal_bytes(work.copied_bytes) + " copied");
  if (work.link_bytes > 0) parts.push_back(readable_decimal_bytes(work.link_bytes) + " over links");
  if (parts.empty()) return "nothing was checked";
  const std::string done =
      fmt::format("{} wrong in {}", readable_count(wrong), fmt::join(parts, ", "));
  if (wrong > 0) return done;
  return fmt::format("{}: rate below {:.3g} per {}-hour at 95 %", done, rate_bound(work.gpu_hours),
                     device);
}

}  // namespace shakedown::node
