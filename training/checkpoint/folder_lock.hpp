// The lock of a folder of checkpoints, on any file system that the nodes share: one training at a
// time writes there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "common/mpi_session.hpp"

namespace shakedown::training {

/// The run that holds a folder, as its file checkpoint.lock names it.
struct LockOwner {
  std::string run_id;
  std::string host;
  int pid = 0;
  std::string machine;     // boot and namespace in which the pid counts; empty: not known
  std::string started;     // the process, in ticks since the boot: pids are used again
  std::string job;         // Slurm's, and its cluster; or empty
  int restart = 0;         // how often Slurm has started the job again
  double heartbeat_s = 0;  // between two changes of the file; 0: it does not change
};
/// This process.
LockOwner lock_owner(const std::string& run_id, double heartbeat_s);
/// The file's content. Hosts watch the count of beats: their clocks need not agree.
std::string text_of(const LockOwner& owner, long beat);
/// DIR/checkpoint.lock.
std::string lock_path(const std::string& dir);

class FolderLock {
 public:
  /// Rank 0 takes the lock of a folder that can be written; the others wait. A lock that is there
  /// is taken over, with a line, where its owner has ended: its process on this machine is gone,
  /// its Slurm job was started again, or its file did not change for six heartbeats. Else throws
  /// UsageError naming the owner. Collective.
  FolderLock(const std::string& dir, const std::string& run_id, const MpiSession& session);
  /// Gives it back.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& run_id() const { return own_.run_id; }
  /// Before a file takes its place: throws InconclusiveError naming the run that has taken the
  /// folder over meanwhile. It saw no heartbeat of a process that was suspended, or of a host that
  /// was cut off.
  void check();
  /// Whether one has, as was seen at a heartbeat or by check().
  bool is_lost() const { return lost_; }

 private:
  void take(const MpiSession& session);
  int create();
  void replace();
  std::string other();
  void beat();

  const std::string path_;
  LockOwner own_;
  bool held_ = false;
  long beats_ = 0;
  std::mutex mutex_;  // of the file
  std::atomic<bool> lost_ = false;
  std::condition_variable_any ends_;
  std::jthread beating_;
};

/// Throws UsageError where the checkpoint's run holds the folder that it lies in, and lives: two
/// trainings would go on from one state. Rank 0 alone calls it.
void check_not_in_use(const std::string& checkpoint, const std::string& run_id,
                      const MpiSession& session);

}  // namespace shakedown::training
