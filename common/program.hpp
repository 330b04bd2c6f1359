// What every main shares: one session, one try, one exit code that all ranks agree on.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/record.hpp"

namespace shakedown {

using ProgramBody = ExitCode (*)(MpiSession& session, int argc, char** argv);

/// Runs `body` on every rank. An exception ends the whole job, naming rank, host and reason; else
/// the worst code of any rank becomes every rank's. Returns the process's exit status.
int run_program(int argc, char** argv, ProgramBody body);

/// Runs `body` and writes the "end" record: with its code, or with that of a FailError or
/// UsageError, which goes on its way. After any other exception there is none: what was measured is
/// incomplete.
ExitCode recorded(Record& record, const std::function<ExitCode()>& body);

/// Prints a line for people, on rank 0 alone; nothing when it is empty.
void say(const MpiSession& session, const std::string& line);

/// Parses the command line and looks for the files that it names. Returns the code that every rank
/// ends with where the program should end now: one printed the help, or was the first whose options
/// are wrong or whose host lacks a file, and said so. Collective.
std::optional<ExitCode> parse_options(OptionSet& set, const MpiSession& session, int argc,
                                      char** argv);

}  // namespace shakedown
