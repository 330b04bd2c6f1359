// Faults and delays of collectives and links. What measures knows nothing of them: it is replaced
// by a class that is late or wrong.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "collectives/links/links.hpp"
#include "collectives/perf/bench.hpp"
#include "tests/support/injected_data.hpp"

namespace shakedown::collectives {

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
};

/// `fault`: RANK[:OPERATION[:INDEX[:BIT]]], or RANK:CLASS[:OPERATION[:BYTE[:LENGTH]]] with the name
/// of a class of wrong data; `delay`: RANK:MICROSECONDS. Either may be empty.
Injection parse_injection(const std::string& fault, const std::string& delay, int ranks);

/// The classes that measure, late or wrong.
std::unique_ptr<CollectiveBench> injected_bench(const Injection& injection,
                                                Communicator& communicator, Backend& backend,
                                                const MpiSession& session,
                                                const BenchSettings& settings,
                                                std::size_t largest_bytes);
std::unique_ptr<LinkMessages> injected_messages(const Injection& injection, Backend& backend,
                                                const MpiSession& session,
                                                const MessageSettings& settings);

}  // namespace shakedown::collectives
