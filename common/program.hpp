// The frame of every main: one session, one try, one exit code that all ranks agree on.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/error.hpp"
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

}  // namespace shakedown
