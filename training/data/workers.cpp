#include "training/data/workers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "common/error.hpp"

namespace shakedown::training {

Workers::Workers(int count) : size_(count) {
  if (count < 1) throw UsageError(fmt::format("--workers {}: at least 1 is needed", count));
  try {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (const std::system_error& error) {
    const std::size_t started = threads_.size();
    end();
    throw UsageError(fmt::format("--workers {}: only {} threads could be started: {}", count,
                                 started, error.code().message()));
  } catch (...) {  // no memory: those that were started would be waited for without end
    end();
    throw;
  }
}

Workers::~Workers() { end(); }

/// One notice for all: a stop token each would wake all of them for each one that ends.
void Workers::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
}

void Workers::run(int worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = nullptr;
    work_.wait(lock, [&] { return ending_ || (job = next_job()) != nullptr; });
    if (ending_) return;
    job->work(worker, lock);
  }
}

Workers::Job* Workers::next_job() const {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) { return job->has_work(); });
  return found == jobs_.end() ? nullptr : *found;
}

}  // namespace shakedown::training
