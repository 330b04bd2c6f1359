// What every main shares: one session, one try, one exit code that all ranks agree on.
#pragma once

#include <string>

#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"

namespace shakedown {

using ProgramBody = ExitCode (*)(MpiSession& session, int argc, char** argv);

/// Runs `body` on every rank. An exception ends the whole job, naming rank, host and reason; else
/// the worst code of any rank becomes every rank's. Returns the process's exit status.
int run_program(int argc, char** argv, ProgramBody body);

/// Prints a line for people, on rank 0 alone; nothing when it is empty.
void say(const MpiSession& session, const std::string& line);

/// Prints the help, or the usage error, on rank 0 and hands on its code.
ExitCode end_early(const MpiSession& session, const OptionSet::Ending& ending);

}  // namespace shakedown
