// The threads that make samples: one pool per rank, which all its loaders share.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace shakedown::training {

/// Threads that live as long as the run. Jobs that were added first are served first.
class Workers {
 public:
  /// Something to work on. The threads call both functions with the mutex locked.
  class Job {
   public:
    virtual bool has_work() const = 0;
    /// Takes one piece of work, and unlocks while it does it. `worker` is below size().
    virtual void work(int worker, std::unique_lock<std::mutex>& lock) = 0;

   protected:
    ~Job() = default;
  };

  /// Throws UsageError naming --workers when the threads cannot be started.
  explicit Workers(int count);
  /// No job is left by then.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return size_; }
  /// Guards the jobs and what they share with the threads.
  std::mutex& mutex() { return mutex_; }
  /// A job has work again.
  void wake() { work_.notify_all(); }
  // Both with the mutex locked; a job is removed when no thread works on it any more.
  void add(Job& job) { jobs_.push_back(&job); }
  void remove(Job& job) { std::erase(jobs_, &job); }

 private:
  void run(int worker);
  void end();
  Job* next_job() const;

  const int size_;
  std::mutex mutex_;
  std::condition_variable work_;  // the threads wait: a job has work, or it ends
  std::vector<Job*> jobs_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // last: joined before anything else goes
};

}  // namespace shakedown::training
