// An event for which a thread waits asleep: the cores decode in the meantime.
#pragma once

#include "common/gpu/check.hpp"

namespace shakedown::gpu {

class IdleEvent {
 public:
  IdleEvent() {
    CHECK_CUDA(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync | cudaEventDisableTiming));
  }
  ~IdleEvent() { cudaEventDestroy(event_); }
  IdleEvent(const IdleEvent&) = delete;
  IdleEvent& operator=(const IdleEvent&) = delete;

  void record(cudaStream_t stream) { CHECK_CUDA(cudaEventRecord(event_, stream)); }
  /// Returns at once where it was never recorded.
  void wait() const { CHECK_CUDA(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace shakedown::gpu
