// What the stem's two kernels on tensor cores share: its convolution forward, with max-pooling and
// the norm's sums, and its weights' gradient.
//
// Two pixels of the image, four channels each (the last is zero), are a unit of 16 bytes. The patch
// of the p-th pixel of a row of z is four units in each of seven rows of the image, from unit p on
// of a row that begins four pixels before the image: of its eight pixels the first is not in the
// filter, and has weight 0. ldmatrix, which takes rows of 16 bytes from anywhere, reads patches
// where the image lies in shared memory: a matrix of patches is never made.
//
// A block takes steps of four rows of z, one after the other. Some of its warps multiply. The
// others, its helpers, load the image, and pool what the step before left in shared memory, or make
// the gradient of the next step there.
#pragma once

#include "resnet/gpu/stem_passes.cuh"
#include "resnet/gpu/tensor_cores.cuh"

namespace shakedown::gpu::stem {

inline constexpr unsigned kChannels = 64;
inline constexpr unsigned kTaps = 7;       // rows and columns of the filter
inline constexpr unsigned kPatchRow = 32;  // elements of a patch in a row of the image
inline constexpr unsigned kPatch = kTaps * kPatchRow;
inline constexpr unsigned kStepRows = 4;  // of z
inline constexpr unsigned kImageRows = 2 * kStepRows + kTaps - 2;
inline constexpr unsigned kUnit = 16;                   // bytes
inline constexpr unsigned kPadding = 2;                 // units before a row of the image
inline constexpr unsigned kPixelBytes = kChannels * 2;  // of z
inline constexpr unsigned kPixelChunks = kPixelBytes / 16;

/// z, and the image that is twice as high and wide. Of z the width is a multiple of 16, and the
/// height of 4.
struct Shape {
  unsigned height, width;
  unsigned steps_per_image, steps;

  static Shape of(const ActivationShape& z) {
    const auto height = static_cast<unsigned>(z.h);
    const unsigned per_image = height / kStepRows;
    return {height, static_cast<unsigned>(z.w), per_image, per_image * static_cast<unsigned>(z.n)};
  }
  __host__ __device__ unsigned pitch() const { return (width + 3) * kUnit; }  // of the image
  __host__ __device__ unsigned image_bytes() const {  // a stage: the next one begins with a pixel
    return (kImageRows * pitch() + kPixelBytes - 1) / kPixelBytes * kPixelBytes;
  }
  __host__ __device__ unsigned row_bytes() const { return width * kPixelBytes; }  // of z
  __device__ unsigned first_step(unsigned block) const { return steps * block / gridDim.x; }
};

/// __syncthreads() for products and helpers, which wait at places of their own in the code.
__device__ inline void synchronise_roles() { asm volatile("barrier.sync 1;" ::: "memory"); }

/// Byte offset of a chunk of 8 channels in a row of z in shared memory, swizzled so that a chunk of
/// eight pixels, and half the chunks of two, lie in different banks.
__device__ inline unsigned swizzle_of(unsigned pixel) { return pixel % 2 * 4 + pixel / 2 % 4; }
__device__ inline unsigned offset_in_row(unsigned pixel, unsigned chunk) {
  return pixel * kPixelBytes + (chunk ^ swizzle_of(pixel)) * 16;
}

/// The zeros before and after the rows of both stages of the image; every thread of the block calls
/// it.
__device__ inline void clear_padding(const Shape& s, unsigned char* image) {
  constexpr unsigned kCleared = kPadding + 1;
  for (unsigned i = threadIdx.x; i < 2 * kImageRows * kCleared; i += blockDim.x) {
    const unsigned unit = i % kCleared;
    const unsigned row = i / kCleared;
    Vector<unsigned, 4>{}.store(reinterpret_cast<unsigned*>(
        image + row / kImageRows * s.image_bytes() + row % kImageRows * s.pitch() +
        (unit < kPadding ? unit : s.width + unit) * kUnit));
  }
}

/// Starts to copy the rows of the image that a step of z needs; rows outside are zero. The helpers,
/// the threads from kProducts on, call it.
template <unsigned kProducts, class T>
__device__ void load_image(const T* x, const Shape& s, unsigned step, unsigned to) {
  const unsigned helper = threadIdx.x - kProducts;
  const unsigned image = step / s.steps_per_image;
  const unsigned rows = 2 * s.height;
  const int first = static_cast<int>(step % s.steps_per_image * (2 * kStepRows)) - 3;
  for (unsigned i = helper / 32; i < kImageRows; i += (blockDim.x - kProducts) / 32) {
    const int row = first + static_cast<int>(i);
    const bool exists = row >= 0 && row < static_cast<int>(rows);
    const T* from = x + (std::size_t{image} * rows + static_cast<unsigned>(exists ? row : 0)) *
                            s.width * (kUnit / sizeof(T));
    for (unsigned unit = helper % 32; unit < s.width; unit += 32)
      copy_16(to + i * s.pitch() + (kPadding + unit) * kUnit, from + unit * (kUnit / sizeof(T)),
              exists);
  }
  commit_copies();
}

/// Whether the stem is what these kernels compute, wherever they run.
inline bool fits(DataType type, const ConvShape& conv) {
  const ActivationShape z = conv.y();
  return size_of(type) == 2 && conv.x.c == 4 && conv.k == static_cast<int>(kChannels) &&
         conv.kernel == static_cast<int>(kTaps) && conv.stride == 2 && conv.pad == 3 &&
         conv.x.w == 2 * z.w && conv.x.h == 2 * z.h && z.w % 16 == 0 &&
         z.h % static_cast<int>(kStepRows) == 0;
}

/// A block per multiprocessor, as far as there are steps.
inline unsigned blocks_for(const Shape& s) { return std::min(multiprocessors(), s.steps); }

template <class Kernel, class Parameters>
void launch(Kernel kernel, const Parameters& parameters, unsigned threads, std::size_t bytes,
            cudaStream_t stream) {
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  kernel<<<blocks_for(parameters.s), threads, bytes, stream>>>(parameters);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu::stem
