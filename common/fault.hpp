// A fault that is injected so that tests see it found: never silent, the output and the record say
// it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

class Option;
class OptionSet;

/// What goes wrong on one rank.
enum class FaultKind {
  product,     // a bit of a product's result
  memory,      // a bit of device memory between writing and reading it
  copy,        // a bit of what was copied
  collective,  // a bit of what a collective delivered
  hash,        // the hash, not what was hashed
  slow,        // the rank computes slower than its peers
  stall,       // a call of the driver's management library does not return
};
const char* name_of(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::product;
  int rank = 0;
};

/// --inject-fault KIND:RANK, hidden.
Option& declare_fault_option(OptionSet& options, std::string& value);

/// None where `value` is empty. Throws UsageError that names the option, the value and what is
/// allowed.
std::optional<Fault> parse_fault(const std::string& value, const std::vector<FaultKind>& kinds,
                                 int ranks);

/// Flips one bit of an element, the last one where there are fewer, after the work of the stream;
/// waits until it is done.
void flip_bit(Device& device, Stream& stream, View in, std::size_t index, int bit);
/// Of what no work is under way on.
void flip_bit(Device& device, View in, std::size_t index, int bit);

/// "fault injected: product on rank 1", for the output; the record has options.inject_fault.
std::string line_of(const Fault& fault);

}  // namespace shakedown
