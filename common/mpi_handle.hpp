// The one place where mpi.h is seen; included by mpi_session.cpp and mpi_communicator.cpp alone.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "common/error.hpp"

namespace shakedown {

struct MpiHandle {
  MPI_Comm comm = MPI_COMM_NULL;
  double timeout_s = 300;
  bool ends_mpi = false;  // of the first session, which the split ones must not outlive
  // Of a part's rank 0: the whole that it was split from, and the ranks there that do not belong to
  // it; see MpiSession::progress.
  MPI_Comm whole = MPI_COMM_NULL;
  std::vector<int> others;
};

inline void check_mpi(int status, const char* expression, const char* file, int line) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw_library_error("MPI", expression, file, line, text);
}
#define CHECK_MPI(expression) ::shakedown::check_mpi((expression), #expression, __FILE__, __LINE__)

/// Completes the requests. Polls, so that a rank that never answers is noticed: past the timeout
/// throws InconclusiveError with `what`. The requests must not be touched after that.
void wait_for(std::vector<MPI_Request>& requests, double timeout_s, const std::string& what);

}  // namespace shakedown
