// nvJPEG, opened at run time: a build needs neither its header nor a node its library.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

namespace shakedown::gpu {

/// The few declarations of nvjpeg.h that are used, the same in CUDA 11 to 13.
struct Nvjpeg {
  struct Image {
    unsigned char* channel[4];
    std::size_t pitch[4];
  };
  using Handle = void*;  // thread-safe
  using State = void*;   // of one thread at a time
  /// A handle or a state that nvJPEG destroys.
  using Owned = std::unique_ptr<void, int (*)(void*)>;

  // nvjpegStatus_t
  static constexpr int kSuccess = 0;
  // Those that blame the library or the machine.
  static constexpr int kNotInitialized = 1;
  static constexpr int kAllocatorFailure = 5;
  static constexpr int kArchMismatch = 7;
  // Those that blame the image.
  static constexpr int kBadJpeg = 3;
  static constexpr int kJpegNotSupported = 4;
  static constexpr int kImplementationNotSupported = 9;
  static constexpr int kIncompleteBitstream = 10;

  static constexpr int kHardware = 3;              // nvjpegBackend_t
  static constexpr unsigned kStrictBitstream = 4;  // an incomplete file is an error, not grey
  static constexpr int kInterleavedRgb = 5;        // nvjpegOutputFormat_t
  static constexpr int kFullChroma = 0;            // nvjpegChromaSubsampling_t

  int (*create)(int backend, void* device_allocator, void* pinned_allocator, unsigned flags,
                Handle* handle) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*hardware_info)(Handle, unsigned* engines, unsigned* cores_per_engine) = nullptr;
  int (*create_state)(Handle, State*) = nullptr;
  int (*destroy_state)(State) = nullptr;
  int (*preallocate)(Handle, State, int batch, int width, int height, int subsampling,
                     int output_format) = nullptr;
  int (*initialize)(Handle, State, int batch, int cpu_threads, int output_format) = nullptr;
  int (*decode)(Handle, State, const unsigned char* const* files, const std::size_t* bytes,
                Image* to, cudaStream_t stream) = nullptr;

  std::shared_ptr<void> keeps_loaded;

  /// The library of this CUDA release; null with the reason where it cannot be had.
  static std::shared_ptr<const Nvjpeg> open(std::string& why_not);
};

}  // namespace shakedown::gpu
