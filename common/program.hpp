// What every main shares: one session, one try, one exit code that all ranks agree on.
#pragma once

#include "common/error.hpp"
#include "common/mpi_session.hpp"

namespace shakedown {

using ProgramBody = ExitCode (*)(MpiSession& session, int argc, char** argv);

/// Runs `body` on every rank. An exception ends the whole job, naming rank, host and reason; else
/// the worst code of any rank becomes every rank's. Returns the process's exit status.
int run_program(int argc, char** argv, ProgramBody body);

}  // namespace shakedown
