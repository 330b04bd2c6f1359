// Kernels that scale images, and those that find out which images were decoded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "common/gpu/native.hpp"

namespace shakedown::gpu {

/// One region of an image in device memory, and the memory it is scaled in.
struct ScaledRegion {
  const std::uint8_t* rgb;  // its first pixel
  std::size_t pitch;        // bytes from row to row
  int width;
  int height;
  std::int32_t* across;  // filter_words(width, size)
  std::int32_t* down;    // filter_words(height, size)
  std::uint8_t* rows;    // height x size x 3: the region scaled across
  std::uint8_t* out;     // size x size x 3
  bool mirror;
};

/// 32-bit words of the filter from `from` pixels to `to`.
std::size_t filter_words(int from, int to);

/// Scales each region to size x size. `regions` is device memory, `tallest` their largest height.
void scale_regions(std::span<const ScaledRegion> regions, int tallest, int size,
                   cudaStream_t stream);

/// Images in device memory whose pixels a decoder is about to write.
struct MarkedImages {
  static constexpr int kMost = 64;
  struct {
    std::uint8_t* rgb;
    std::size_t pitch;
    int width;
    int height;
  } image[kMost];
};

/// Writes known bytes to the end of eight rows of each image, from the first to the last.
void mark_images(const MarkedImages& images, int count, cudaStream_t stream);
/// written[i] = 1 where none of the marks of image i is left, else 0. `written` is pinned memory.
void check_marks(const MarkedImages& images, int count, std::uint8_t* written, cudaStream_t stream);

// An event for which a thread waits asleep: the cores decode in the meantime.

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
