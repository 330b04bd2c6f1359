// Initialises MPI; this rank's place among the others, and small exchanges between hosts.
#pragma once

#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/exit_code.hpp"

namespace shakedown {

struct MpiHandle;

class MpiSession {
 public:
  /// Starts MPI. The timeout counts for its start and end, too: past it the process ends with
  /// ExitCode::inconclusive, as no other rank can be asked.
  MpiSession(int* argc, char*** argv, double timeout_s = 300);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  /// Position among, and number of, the ranks of this host (those that can share memory).
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& host() const { return host_; }
  /// The host of every rank.
  const std::vector<std::string>& hosts() const { return hosts_; }
  /// The boot id of every rank's machine; "" where it cannot be read.
  const std::vector<std::string>& boot_ids() const { return boot_ids_; }
  bool is_root() const { return rank_ == 0; }

  /// The time after which an operation between ranks counts as hung.
  void set_timeout(double seconds);
  double timeout_s() const;

  /// One value from every rank, in rank order, on every rank.
  std::vector<double> all_gather(double value) const;
  std::vector<std::string> all_gather(const std::string& value) const;
  /// The same on rank 0 alone, empty on the others: for what grows with the number of ranks.
  std::vector<std::string> gather(const std::string& value) const;
  template <class Struct>
  requires(std::is_class_v<Struct>&& std::is_trivially_copyable_v<Struct>)
      std::vector<Struct> all_gather(const Struct& value)
  const {
    std::vector<Struct> values(static_cast<std::size_t>(world_size_));
    gather_bytes(&value, values.data(), sizeof(Struct));
    return values;
  }
  /// A list from every rank, of any length each.
  template <class T>
  requires(std::is_trivially_copyable_v<T>) std::vector<std::vector<T>> all_gather(
      const std::vector<T>& mine)
  const {
    const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
    std::vector<std::vector<T>> all;
    for (const std::string& of_rank : all_gather(bytes))
      of_rank.copy(reinterpret_cast<char*>(all.emplace_back(of_rank.size() / sizeof(T)).data()),
                   of_rank.size());
    return all;
  }
  void barrier() const;
  /// The barrier of a rank that has nothing to do: waits for as long as the others work, and leaves
  /// its core to them. Throws TimeoutError when one of them has given up, or when none has shown
  /// progress() for somewhat longer than the timeout.
  void wait_idle() const;
  /// In a part: notifies the ranks outside it, which wait_idle() in the whole session, that this
  /// part is at work. Call it as often as convenient: it sends at most eight notices per timeout,
  /// from rank 0, and none in a session that is no part. all_gather() calls it too.
  void progress() const;
  /// The same to these ranks of this session, for work that is not a part's.
  void progress(const std::vector<int>& waiting) const;

  /// A session of the ranks that pass the same color, in the order they have here; null where that
  /// is negative. Every rank calls it. It must end before this one does.
  std::unique_ptr<MpiSession> split(int color) const;

  /// The ranks that do not call this too within the time: those that everybody waits for. Once,
  /// when the job is about to end.
  std::vector<int> silent_ranks(double patience_s) const;

  /// Names rank, host and reason on stderr, once where ranks have one reason, and ends the whole
  /// job with `code`.
  [[noreturn]] void abort(ExitCode code, const std::string& reason) const noexcept;

  const MpiHandle& handle() const { return *handle_; }

  /// The version of the MPI library at build and at run time.
  static std::string build_version();
  static std::string library_version();

 private:
  explicit MpiSession(std::unique_ptr<MpiHandle> handle);
  bool progress_is_due() const;
  bool root_gives(const std::string& reason) const noexcept;
  std::vector<std::string> gather_texts(const std::string& value, bool everywhere) const;
  void gather_bytes(const void* mine, void* all, std::size_t bytes) const;

  std::unique_ptr<MpiHandle> handle_;
  int rank_ = 0;
  int world_size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::string host_;
  std::vector<std::string> hosts_;
  std::vector<std::string> boot_ids_;
  mutable std::chrono::steady_clock::time_point progressed_ = std::chrono::steady_clock::now();
  int exceptions_ = std::uncaught_exceptions();
};

/// Name and number in what MPI_Get_library_version gives, which may have many lines: "MPICH 4.3.2".
std::string mpi_version_in(const std::string& text);

class Watchdog;
/// For a call that waits for other ranks without a time-out. The rank that is missing is the one
/// that does not print this: launch/mpi names it. Null where no thread can be started.
std::unique_ptr<Watchdog> watch(const char* call, double timeout_s, const char* cause);

/// This process's rank by the launcher's variables, before MPI has started; "" without a launcher.
std::string launched_rank();

/// The environment variable which shows that a launcher started more than one task, or "".
std::string launched_with_others();

// An agreement of all ranks on the highest of a small number each, step after step, that no step
// waits for.

class MpiSession;

class MpiAgreement {
 public:
  /// Collective. Ranks may be up to `slack` steps apart anyway.
  MpiAgreement(const MpiSession& session, int slack);
  ~MpiAgreement();
  MpiAgreement(const MpiAgreement&) = delete;
  MpiAgreement& operator=(const MpiAgreement&) = delete;

  /// Steps from a value to its effect: a non-blocking all-reduce needs log2(ranks) rounds, each of
  /// which goes on when a rank calls MPI, and hosts may be some steps apart.
  int lag() const;
  /// Adds this rank's value of this step. Returns the highest that any rank added lag() steps ago,
  /// the same on every rank; 0 before.
  int step(int value);
  /// Adds a value and returns the highest that has not been returned yet. Waits for all ranks.
  int settle(int value);

 private:
  struct Pending;
  std::unique_ptr<Pending> pending_;
};

// Signals that request a program to stop: noted, so that it ends at a moment of its choice, or
// ending it at once, after its last words.

/// A handler of some signals. Those that are ignored (nohup) stay so.
class SignalHandler {
 public:
  SignalHandler(const std::vector<int>& signals, void (*handler)(int));
  /// The handlers that were installed before.
  ~SignalHandler();
  SignalHandler(const SignalHandler&) = delete;
  SignalHandler& operator=(const SignalHandler&) = delete;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

/// Slurm and a job script may both deliver one stop to a rank, as TERM and as USR2: only a signal
/// that comes this long after the first, or longer, ends the process at once.
constexpr int kSameStopMs = 1000;

class StopSignals {
 public:
  /// From now on TERM, INT, HUP, USR1 and USR2 are noted; one that comes kSameStopMs or more after
  /// the first ends the process. At most one object at a time.
  StopSignals();

  /// "SIGTERM", or "" while none has come.
  std::string received() const;

 private:
  SignalHandler handler_;
};

/// Lets a signal end the process after its last words. While a StopSignals lives, signals are noted
/// instead. At most one object at a time.
class LastWords {
 public:
  /// At INT, HUP, USR1 or USR2 `report` runs in a thread of its own. TERM is one of them only where
  /// this process is the only rank: a launcher sends TERM to the ranks that are left when one has
  /// failed. Where `report` does not return within `patience` (a file that blocks), or a second
  /// signal comes kSameStopMs or more after the first, the process ends without it.
  explicit LastWords(const std::function<void()>& report,
                     std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~LastWords();

 private:
  std::thread thread_;
  SignalHandler handler_;
};

}  // namespace shakedown
