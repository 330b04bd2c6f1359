// The one place where mpi.h is seen; included by the session's and the communicator's files alone.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/types.hpp"
#include "common/watch.hpp"

namespace shakedown {

struct TimeoutError;

struct MpiHandle {
  MPI_Comm comm = MPI_COMM_NULL;
  double timeout_s = 300;
  bool ends_mpi = false;  // of the first session, which the split ones must not outlive
  // On rank 0 of a part: the session that it was split from, and the ranks of that session that do
  // not belong to the part; see MpiSession::progress.
  MPI_Comm whole = MPI_COMM_NULL;
  std::vector<int> others;
  std::unique_ptr<Watchdog> start;  // of MPI, until the session is there
};

void check_mpi(int status, const char* expression, const char* file, int line);
#define CHECK_MPI(expression) ::shakedown::check_mpi((expression), #expression, __FILE__, __LINE__)

/// The time until which an operation must be done. It polls, so that a rank that never answers is
/// noticed, and leaves the core to other ranks once it has polled for a while.
class MpiDeadline {
 public:
  explicit MpiDeadline(double timeout_s)
      : timeout_s_(timeout_s), end_(Clock::now() + std::chrono::duration<double>(timeout_s)) {}

  /// Completes the requests and forgets them; false past the deadline. They then go on: what MPI
  /// reads and writes must never be released, as a rank that is late still completes them.
  bool wait(std::vector<MPI_Request>& requests);

  /// The error that `what` is not done.
  TimeoutError error(const std::string& what) const;

 private:
  using Clock = std::chrono::steady_clock;
  double timeout_s_;
  std::chrono::time_point<Clock, std::chrono::duration<double>> end_;
  long polls_ = 0;  // in vain
};

/// One operation with the memory that MPI reads and writes for it. Memory of an operation that is
/// not completed is never released.
class MpiOperation {
 public:
  MpiOperation() = default;
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;
  ~MpiOperation();

  /// Moves `value` to where it lives for as long as the operation does.
  template <class T>
  T& keep(T value) {
    auto kept = std::make_shared<T>(std::move(value));
    memory_.push_back(kept);
    return *kept;
  }
  /// For MPI to fill in.
  MPI_Request* request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  /// Throws TimeoutError naming `what`.
  void wait(double timeout_s, const std::string& what);

 private:
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<MPI_Request> requests_;
};

/// Waits until all ranks call it. Comes before the calls that make a communicator, which have no
/// time-out.
void wait_for_all(MPI_Comm comm, double timeout_s);

/// Starts a message and adds its request; nothing for a view without elements.
void start_send(ConstView view, int to, int tag, MPI_Comm comm, std::vector<MPI_Request>& requests);
void start_recv(View view, int from, int tag, MPI_Comm comm, std::vector<MPI_Request>& requests);

}  // namespace shakedown
