#include "common/fault.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown {

const char* name_of(FaultKind kind) {
  constexpr const char* kNames[] = {"product", "memory", "copy", "collective",
                                    "hash",    "slow",   "stall"};
  return kNames[static_cast<int>(kind)];
}

Option& declare_fault_option(OptionSet& options, std::string& value) {
  options.heading("");
  return options.add("--inject-fault", value, "KIND:RANK: a fault for tests, which must be found");
}

std::optional<Fault> parse_fault(const std::string& value, const std::vector<FaultKind>& kinds,
                                 int ranks) {
  if (value.empty()) return std::nullopt;
  const std::size_t colon = value.find(':');
  const std::string name = value.substr(0, colon);
  const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                 [&](FaultKind known) { return name == name_of(known); });
  Fault fault;
  char rest = 0;
  const bool has_rank = colon != std::string::npos &&
                        std::sscanf(value.c_str() + colon, ":%d%c", &fault.rank, &rest) == 1;
  if (kind == kinds.end() || !has_rank || fault.rank < 0 || fault.rank >= ranks) {
    std::vector<std::string> names;
    for (const FaultKind known : kinds) names.emplace_back(name_of(known));
    throw UsageError(
        fmt::format("--inject-fault {}: must be KIND:RANK with KIND one of {} and a rank below {}",
                    value, fmt::join(names, ", "), ranks));
  }
  fault.kind = *kind;
  return fault;
}

void flip_bit(Device& device, Stream& stream, View in, std::size_t index, int bit) {
  if (in.count == 0) return;
  const View element = in.slice(std::min(index, in.count - 1), 1);
  auto bytes = download<unsigned char>(device, stream, element.data, element.bytes());
  auto& byte = bytes[static_cast<std::size_t>(bit) / 8 % bytes.size()];
  byte = static_cast<unsigned char>(byte ^ (1U << (bit % 8)));
  upload<unsigned char>(device, stream, element.data, bytes);
}

void flip_bit(Device& device, View in, std::size_t index, int bit) {
  flip_bit(device, *device.make_stream(), in, index, bit);
}

std::string line_of(const Fault& fault) {
  return fmt::format("fault injected: {} on rank {}", name_of(fault.kind), fault.rank);
}

}  // namespace shakedown
