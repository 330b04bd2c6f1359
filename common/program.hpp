// The frame of every main: one session, one try, one exit code that all ranks agree on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/device.hpp"
#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/record.hpp"

namespace shakedown {

/// Parses the command line, without MPI and without the disk. Returns the exit code where the
/// program should end now: help or version was requested, or an option is wrong. The first of the
/// processes that a launcher started prints it.
std::optional<ExitCode> parse_options(OptionSet& set, int argc, const char* const* argv);

/// Starts MPI, checks on every rank the files that the options name, and runs `body`. An exception
/// ends the whole job, naming rank, host and reason; else the worst code of any rank becomes every
/// rank's. Returns the process's exit status.
int run_program(const OptionSet& set, int argc, char** argv,
                const std::function<ExitCode(MpiSession&)>& body);

/// The same without MPI, of a process that has nothing to do with others.
int run_alone(const std::function<ExitCode()>& body);

/// Runs `body` and writes the "end" record: with its code, with that of a FailError or UsageError,
/// which is rethrown, or with ExitCode::stopped where a signal ends the process. After any other
/// exception there is none: what was measured is incomplete. A pass that could not be printed, as
/// the disk is full, is inconclusive.
ExitCode recorded(Record& record, const std::function<ExitCode()>& body);
/// With `summary` as further fields of "end", which body sets.
ExitCode recorded(Record& record, const std::function<ExitCode()>& body, const Json& summary);

/// Prints a line for people, on rank 0 alone; nothing when it is empty.
void say(const MpiSession& session, const std::string& line);

// A fault that is injected so that tests see it found: never silent, the output and the record say
// it.

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
  // How slow, where the program knows amounts; 0 and 0: none was given.
  int held_sms = 0;       // "slow:1:3sms"
  double idle_share = 0;  // "slow:1:5%": 0.05 of the time of each piece of work is idle after it
};

/// --inject-fault KIND:RANK, hidden.
Option& declare_fault_option(OptionSet& options, std::string& value);

enum class FaultAmount { none, of_slow };  // whether a program knows slow:RANK:AMOUNT

/// None where `value` is empty. Throws UsageError that names the option, the value and what is
/// allowed.
std::optional<Fault> parse_fault(const std::string& value, const std::vector<FaultKind>& kinds,
                                 int ranks, FaultAmount amount = FaultAmount::none);

/// Flips one bit of an element, the last one where there are fewer, after the work of the stream;
/// waits until it is done.
void flip_bit(Device& device, Stream& stream, View in, std::size_t index, int bit);
/// Of what no work is under way on.
void flip_bit(Device& device, View in, std::size_t index, int bit);

/// "fault injected: product on rank 1", for the output; the record has options.inject_fault.
std::string line_of(const Fault& fault);

/// Holds SMs of a gpu device while it lives: each has a resident block that leaves no room for the
/// blocks of a product. No memory is freed and no kernel run for the first time meanwhile: both
/// wait for all work of the device.
class HeldSms {
 public:
  /// With more of them held, clusters of blocks find no place, and a product nearly stops.
  static constexpr int kMost = 4;

  /// Returns when the blocks are resident. Throws InconclusiveError where they find no place.
  HeldSms(Device& device, int count);
  ~HeldSms();
  HeldSms(const HeldSms&) = delete;
  HeldSms& operator=(const HeldSms&) = delete;

 private:
  std::unique_ptr<Stream> stream_;
  Buffer words_;  // of the host: HoldWords
};

struct HoldWords {
  std::int32_t stop = 0;      // written by the host
  std::int32_t resident = 0;  // blocks, counted by the device
};

namespace gpu {
/// Enqueues `count` blocks that stay until words->stop, in pinned host memory.
void launch_hold_sms(HoldWords* words, int count, Stream& stream);
}  // namespace gpu

// Which version of what this is, for --version and the record.

/// The commit this was built from, followed by "-dirty" when the tree had changes.
std::string git_revision();

/// Name and version.
using Versions = std::vector<std::pair<std::string, std::string>>;

/// What --version prints: version, revision, backends, CUDA architectures, libraries. Needs neither
/// a device nor a started MPI.
std::string version_text(const std::string& program);

/// "versions differ from those of rank 0 on n1: rank 2 on n2 (driver 570.86 instead of 580.65)" of
/// the first rank of each host that has other versions than rank 0; "" where all are the same.
std::string differing_versions(const std::vector<std::string>& hosts,
                               const std::vector<Versions>& by_rank);

}  // namespace shakedown
