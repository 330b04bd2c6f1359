#include "common/fault.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

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

namespace {

/// "3sms" or "5%".
bool parse_amount(const std::string& text, Fault& fault) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == std::string("%") && number >= 0.1 && number <= 1000)
    fault.idle_share = number / 100;
  else if (end == std::string("sms") && number >= 1 && number <= HeldSms::kMost)
    fault.held_sms = static_cast<int>(number);
  return fault.idle_share > 0 || (fault.held_sms > 0 && fault.held_sms == number);
}

}  // namespace

std::optional<Fault> parse_fault(const std::string& value, const std::vector<FaultKind>& kinds,
                                 int ranks, FaultAmount amount) {
  if (value.empty()) return std::nullopt;
  const std::size_t colon = value.find(':');
  const std::string name = value.substr(0, colon);
  const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                 [&](FaultKind known) { return name == name_of(known); });
  const std::size_t second = colon == std::string::npos ? colon : value.find(':', colon + 1);
  Fault fault;
  char rest = 0;
  const bool has_rank =
      colon != std::string::npos &&
      std::sscanf(value.substr(0, second).c_str() + colon, ":%d%c", &fault.rank, &rest) == 1;
  if (kind == kinds.end() || !has_rank || fault.rank < 0 || fault.rank >= ranks) {
    std::vector<std::string> names;
    for (const FaultKind known : kinds) names.emplace_back(name_of(known));
    throw UsageError(
        fmt::format("--inject-fault {}: must be KIND:RANK with KIND one of {} and a rank below {}",
                    value, fmt::join(names, ", "), ranks));
  }
  fault.kind = *kind;
  if (second == std::string::npos) return fault;
  if (amount == FaultAmount::none || fault.kind != FaultKind::slow)
    throw UsageError(fmt::format("--inject-fault {}: must be {}:RANK, without an amount{}", value,
                                 name, amount == FaultAmount::none ? " in this program" : ""));
  if (!parse_amount(value.substr(second + 1), fault))
    throw UsageError(
        fmt::format("--inject-fault {}: the amount must be 1sms to {}sms (SMs that are held) or "
                    "0.1% to 1000% (idle time after each piece of work)",
                    value, HeldSms::kMost));
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
  std::string amount;
  if (fault.held_sms > 0) amount = fmt::format(", {} of its SMs held", fault.held_sms);
  if (fault.idle_share > 0) amount = fmt::format(", idle for {:g} %", 100 * fault.idle_share);
  return fmt::format("fault injected: {} on rank {}{}", name_of(fault.kind), fault.rank, amount);
}

HeldSms::HeldSms(Device& device, int count)
    : stream_(device.make_stream()), words_(device, sizeof(HoldWords), Place::host) {
  auto* const words = new (words_.data()) HoldWords;
  gpu::launch_hold_sms(words, count, *stream_);
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto start = std::chrono::steady_clock::now();
  while (std::atomic_ref(words->resident).load() < count) {
    if (std::chrono::steady_clock::now() - start < kPatience) continue;
    std::atomic_ref(words->stop).store(1);
    throw InconclusiveError(fmt::format("--inject-fault slow: {} SMs could not be held", count));
  }
}

HeldSms::~HeldSms() {
  std::atomic_ref(static_cast<HoldWords*>(words_.data())->stop).store(1);
  try {
    stream_->synchronize();  // the blocks read the words
  } catch (...) {            // past the timeout, which has its own report
  }
}

}  // namespace shakedown
