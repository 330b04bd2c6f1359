// Faults and delays that tests inject by hidden options of both programs. What measures knows
// nothing of them: it is replaced by a class that is late or wrong where one is requested.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "collectives/injected_data.hpp"
#include "common/device.hpp"

namespace shakedown {
struct Backend;
class Communicator;
class MpiSession;
class OptionSet;
}  // namespace shakedown

namespace shakedown::collectives {

class CollectiveBench;
class LinkMessages;
struct BenchSettings;
struct MessageSettings;

struct InjectionOptions {
  std::string fault;
  std::string delay;
};
void declare_options(OptionSet& options, InjectionOptions& values);

struct Injection {
  int late_rank = -1;  // sleeps before each iteration, or message; -1: none
  int delay_us = 0;
  int wrong_rank = -1;  // has one bit of what it received flipped, or `damage`; -1: none
  long operation = -1;  // in this operation of a row, or message of an exchange; -1: in all
  std::size_t index = 0;
  int bit = 4;
  std::optional<Damage> damage;  // of these bytes of what it received:
  std::size_t first_byte = 0;
  std::size_t bytes = 4096;

  bool none() const { return late_rank < 0 && wrong_rank < 0; }
};

/// Throws UsageError naming the option.
Injection parse_injection(const InjectionOptions& options, int ranks);

/// The classes that measure, late or wrong as requested.
std::unique_ptr<CollectiveBench> make_bench(const Injection& injection, Communicator& communicator,
                                            Backend& backend, const MpiSession& session,
                                            const BenchSettings& settings,
                                            std::size_t largest_bytes);
std::unique_ptr<LinkMessages> make_messages(const Injection& injection, Backend& backend,
                                            const MpiSession& session,
                                            const MessageSettings& settings);

}  // namespace shakedown::collectives
