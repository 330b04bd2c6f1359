// The stem's convolution on tensor cores: forward, with max-pooling and the norm's sums, and the
// gradient of its weights from that of what was pooled.
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
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/passes.cuh"
#include "resnet/gpu/stem_passes.cuh"

namespace shakedown::gpu {
namespace {

constexpr unsigned kChannels = 64;
constexpr unsigned kTaps = 7;       // rows and columns of the filter
constexpr unsigned kPatchRow = 32;  // elements of a patch in a row of the image
constexpr unsigned kPatch = kTaps * kPatchRow;
constexpr unsigned kStepRows = 4;  // of z
constexpr unsigned kImageRows = 2 * kStepRows + kTaps - 2;
constexpr unsigned kUnit = 16;                   // bytes
constexpr unsigned kPadding = 2;                 // units before a row of the image
constexpr unsigned kPixelBytes = kChannels * 2;  // of z
constexpr unsigned kPixelChunks = kPixelBytes / 16;
constexpr unsigned kStemThreads = 384;  // of a block

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
__device__ void synchronise_roles() { asm volatile("barrier.sync 1;" ::: "memory"); }

/// Byte offset of a chunk of 8 channels in a row of z in shared memory, swizzled so that a chunk of
/// eight pixels, and half the chunks of two, lie in different banks.
__device__ unsigned swizzle_of(unsigned pixel) { return pixel % 2 * 4 + pixel / 2 % 4; }
__device__ unsigned offset_in_row(unsigned pixel, unsigned chunk) {
  return pixel * kPixelBytes + (chunk ^ swizzle_of(pixel)) * 16;
}

/// The zeros before and after the rows of both stages of the image; every thread of the block calls
/// it.
__device__ void clear_padding(const Shape& s, unsigned char* image) {
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
bool fits(DataType type, const ConvShape& conv) {
  const ActivationShape z = conv.y();
  return size_of(type) == 2 && conv.x.c == 4 && conv.k == static_cast<int>(kChannels) &&
         conv.kernel == static_cast<int>(kTaps) && conv.stride == 2 && conv.pad == 3 &&
         conv.x.w == 2 * z.w && conv.x.h == 2 * z.h && z.w % 16 == 0 &&
         z.h % static_cast<int>(kStepRows) == 0;
}

/// A block per multiprocessor, as far as there are steps.
unsigned blocks_for(const Shape& s) { return std::min(multiprocessors(), s.steps); }

/// A kernel of the stem whose first kProducts threads multiply; the others help.
template <class Parameters>
void launch(void (*kernel)(Parameters), const Parameters& parameters, std::size_t bytes,
            cudaStream_t stream) {
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  kernel<<<blocks_for(parameters.s), kStemThreads, bytes, stream>>>(parameters);
  CHECK_LAUNCH();
}

// ---- forward
// --------------------------------------------------------------------------------------

// Threads. The weights take most of the registers: there is no room for more warps.
constexpr unsigned kForwardProducts = 256;
constexpr unsigned kForwardHelpers = kStemThreads - kForwardProducts;
constexpr unsigned kRowsKept = 2 * kStepRows + 1;  // of z: two steps and the row before them

template <class T>
struct StemForward {
  Shape s;
  const T* x;
  const T* w;
  const float* gamma;
  const float* running_mean;
  T* z;
  T* peak;
  std::uint8_t* argmax;
  float* partials;
};

/// What a channel's sums are taken from: near the mean, where that is known.
__device__ float origin_of(float running_mean) {
  return isfinite(running_mean) ? running_mean : 0.0F;
}

/// A warp's 32 columns of the weights, negative where gamma is, as the product's right factors: of
/// 8 products' columns g, thread t's results are channels 8 t + 2 g and the next, which makes its
/// eight adjacent.
template <class T>
struct StemWeights {
  unsigned x[2 * kTaps][4][2];

  __device__ StemWeights(const T* w, const float* gamma, unsigned column) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned k = 0; k < 2 * kTaps; ++k)
#pragma unroll
      for (unsigned g = 0; g < 4; ++g)
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          const unsigned element = k % 2 * 16 + half * 8 + lane % 4 * 2;  // in a patch's row
          const unsigned channel = column + lane / 8 * 8 + 2 * g + lane / 4 % 2;
          const unsigned tap = (channel * kTaps + k / 2) * kTaps + element / 4 - 1;
          const unsigned turned = gamma[channel] < 0 ? 0x80008000U : 0U;
          x[k][g][half] =
              element < 4 ? 0U
                          : *reinterpret_cast<const unsigned*>(w + tap * 4 + element % 4) ^ turned;
        }
  }
};

/// The products of a warp: 16 pixels a tile, of the step's tiles every fourth. Leaves z, its signs
/// turned with the weights', in shared memory, and adds to the sums unless the rows belong to
/// another block.
template <class T>
__device__ void multiply_step(const StemWeights<T>& weights, unsigned image, unsigned char* rows,
                              unsigned first_place, bool last_row_alone, const float* origin,
                              const Shape& s, float (&sums)[2][8]) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const unsigned chunk = warp % 2 * 4 + lane % 4;
  const unsigned tiles = s.width / 16;
  for (unsigned tile = (last_row_alone ? (kStepRows - 1) * tiles : 0) + warp / 2;
       tile < kStepRows * tiles; tile += kForwardProducts / 64) {
    const unsigned row = tile / tiles;
    const unsigned pixel = tile % tiles * 16;
    unsigned from = image + 2 * row * s.pitch() + (pixel + lane % 16 + lane / 16) * kUnit;
    float z[4][4] = {};
    unsigned patches[2][4];  // of half a row of the filter; the next half is on its way
    load_matrices(patches[0], from);
#pragma unroll
    for (unsigned k = 0; k < 2 * kTaps; ++k) {
      if (k % 2 == 1) from += s.pitch();
      if (k + 1 < 2 * kTaps) load_matrices(patches[(k + 1) % 2], from + (k + 1) % 2 * 2 * kUnit);
#pragma unroll
      for (unsigned g = 0; g < 4; ++g)
        multiply<T>(z[g], patches[k % 2], weights.x[k][g][0], weights.x[k][g][1]);
    }
    float of_channels[8];
    load_channels(origin, chunk, of_channels);
    unsigned char* const to = rows + (first_place + row) % kRowsKept * s.row_bytes();
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      Pack<T> rounded;
#pragma unroll
      for (unsigned v = 0; v < 8; ++v) {
        const float value = z[v / 2][2 * i + v % 2];
        rounded.x[v] = from_float<T>(value);
        if (last_row_alone) continue;
        const float difference = value - of_channels[v];
        sums[0][v] += difference;
        sums[1][v] += difference * difference;
      }
      rounded.store(reinterpret_cast<T*>(to + offset_in_row(pixel + lane / 4 + 8 * i, chunk)));
    }
  }
}

/// What the helpers have of a step of z, with the signs of some channels turned, in shared memory.
struct StemRows {
  unsigned char* rows;
  unsigned char* lowest;  // a chunk below every z
};

/// Two rows of windows, whose five rows of z begin at `place`: the first of them is outside where
/// the step is an image's first.
template <class T>
__device__ void pool_step(const StemForward<T>& p, unsigned step, const StemRows& kept,
                          unsigned place, const TurnedSigns<T>& turned) {
  using Words = typename WindowMaximum<T>::Words;
  const Shape& s = p.s;
  const unsigned helper = threadIdx.x - kForwardProducts;
  const unsigned chunk = helper % kPixelChunks;
  const unsigned windows = s.width / 2;
  const unsigned char* row[kStepRows + 1];
#pragma unroll
  for (unsigned k = 0; k <= kStepRows; ++k)
    row[k] = kept.rows + (place + k) % kRowsKept * s.row_bytes();
  const bool first = step % s.steps_per_image == 0;
  for (unsigned i = helper / kPixelChunks; i < 2 * windows; i += kForwardHelpers / kPixelChunks) {
    const bool below = i >= windows;
    const unsigned w = below ? i - windows : i;
    const unsigned column[3] = {offset_in_row(2 * w - 1, chunk), offset_in_row(2 * w, chunk),
                                offset_in_row(2 * w + 1, chunk)};
    const std::size_t at =
        ((std::size_t{step} * 2 + (below ? 1 : 0)) * windows + w) * kChannels + chunk * 8;
    T* const to = p.z + (std::size_t{step} * kStepRows + (below ? 2 : 0)) * s.width * kChannels +
                  2 * w * kChannels + chunk * 8;
    WindowMaximum<T> most;
#pragma unroll
    for (unsigned k = 0; k < 9; ++k) {
      const bool outside = (k / 3 == 0 && !below && first) || (k % 3 == 0 && w == 0);
      const unsigned char* from = (below ? row[k / 3 + 2] : row[k / 3]) + column[k % 3];
      const auto z = Words::load(reinterpret_cast<const unsigned*>(outside ? kept.lowest : from));
      most.take(static_cast<int>(k), z);
      if (p.z != nullptr && k / 3 > 0 && k % 3 > 0)  // of this window alone
        store_words(to + ((k / 3 - 1) * s.width + k % 3 - 1) * kChannels, turned.turn(z));
    }
    most.store(p.peak + at, p.argmax + at, turned);
  }
}

template <class T>
__global__ void __launch_bounds__(kStemThreads, 1) conv_stem_pool_kernel(StemForward<T> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Shape& s = p.s;
  unsigned char* const rows = shared + 2 * s.image_bytes();
  auto* const origin = reinterpret_cast<float*>(rows + kRowsKept * s.row_bytes());
  auto* const lowest = reinterpret_cast<unsigned*>(origin + kChannels);
  const unsigned warp = threadIdx.x / 32;
  const unsigned first = s.first_step(blockIdx.x);
  const unsigned last = s.first_step(blockIdx.x + 1);
  // The row of z before the first step is made again, where it is in the same image.
  const unsigned begin = first % s.steps_per_image == 0 ? first : first - 1;
  const auto image = [&](unsigned step) {
    return shared_address(shared) + (step - begin) % 2 * s.image_bytes();
  };
  // of the row before a step
  const auto place = [&](unsigned step) { return (step - begin) * kStepRows; };

  if (threadIdx.x < kChannels) {
    const float value = origin_of(p.running_mean[threadIdx.x]);
    origin[threadIdx.x] = p.gamma[threadIdx.x] < 0 ? -value : value;
  }
  if (threadIdx.x == 0) WindowMaximum<T>::lowest().store(lowest);
  clear_padding(s, shared);
  float sums[2][8] = {};
  if (threadIdx.x < kForwardProducts) {
    const StemWeights<T> weights(p.w, p.gamma, warp % 2 * 32);
    synchronise_roles();
    for (unsigned step = begin; step <= last; ++step) {
      if (step < last)
        multiply_step(weights, image(step), rows, place(step) + 1, step < first, origin, s, sums);
      synchronise_roles();
    }
    float gamma[8];
    load_channels(p.gamma, warp % 2 * 4 + threadIdx.x % 4, gamma);
#pragma unroll
    for (unsigned v = 0; v < 8; ++v)
      if (gamma[v] < 0) sums[0][v] = -sums[0][v];
  } else {
    float gamma[8];
    load_channels(p.gamma, threadIdx.x % kPixelChunks, gamma);
    const auto turned = TurnedSigns<T>::of(gamma);
    const StemRows kept{rows, reinterpret_cast<unsigned char*>(lowest)};
    load_image<kForwardProducts>(p.x, s, begin, image(begin));
    wait_for_copies<0>();
    synchronise_roles();
    for (unsigned step = begin; step <= last; ++step) {
      if (step + 1 < last) load_image<kForwardProducts>(p.x, s, step + 1, image(step + 1));
      if (step > first) pool_step(p, step - 1, kept, place(step - 1), turned);
      wait_for_copies<0>();
      synchronise_roles();
    }
  }
  // Of two warps side by side, and pairs below one another; the helpers have no sums.
  constexpr unsigned kPairs = (kStemThreads) / 64;
  write_sums<2, kChannels, kPairs>(sums, warp / 2, warp % 2 * 32, reinterpret_cast<float*>(rows),
                                   p.partials + blockIdx.x * (2 * kChannels), kChannels);
}

struct FinishStemStatistics {
  NormParameters parameters;
  NormVectors vectors;
  Count count;

  __device__ void operator()(int c, const double (&sums)[2]) const {
    set_statistics(c, origin_of(parameters.running_mean[c]), sums[0], sums[1], count, parameters,
                   vectors);
  }
};

std::size_t forward_bytes(const Shape& s) {  // of shared memory
  return 2 * std::size_t{s.image_bytes()} + kRowsKept * std::size_t{s.row_bytes()} +
         kChannels * sizeof(float) + kUnit;
}

}  // namespace

bool has_conv_stem_pool(DataType type, const ConvShape& conv) {
  return fits(type, conv) && with_16_bits(type, [&]<class T>(T) {
           return runs_kernel(conv_stem_pool_kernel<T>, forward_bytes(Shape::of(conv.y())));
         });
}

std::size_t conv_stem_pool_partials() { return std::size_t{multiprocessors()} * 2 * kChannels; }

int conv_stem_pool(const void* x, const void* w, const NormParameters& parameters, void* z,
                   void* peak, std::uint8_t* argmax, float* partials, const Launch& on) {
  const auto s = Shape::of(on.shape);
  with_16_bits(on.type, [&]<class T>(T) {
    launch(conv_stem_pool_kernel<T>,
           StemForward<T>{s, as<T>(x), as<T>(w), parameters.gamma, parameters.running_mean,
                          as<T>(z), as<T>(peak), argmax, partials},
           forward_bytes(s), on.stream);
  });
  return static_cast<int>(blocks_for(s));
}

void finish_conv_stem_pool(const float* partials, int count, const NormParameters& parameters,
                           const NormVectors& norm, const Launch& on) {
  finish_partials<2>(FinishStemStatistics{parameters, norm, Count::of(on.shape)}, partials, count,
                     on.shape.c, on.stream);
}

// ---- the gradient of the weights
// ------------------------------------------------------------------

namespace {

constexpr unsigned kBackwardProducts = 128;
constexpr unsigned kBackwardHelpers = kStemThreads - kBackwardProducts;

template <class T>
struct StemBackward {
  Shape s;
  const T* dsum;
  const std::uint8_t* argmax;
  const T* z;
  NormVectors norm;
  const T* x;
  float* partials;
};

/// What a helper makes: patches of 2x2 pixels, eight channels each. They are numbered by rows of
/// all images.
template <class T>
struct StemPatches {
  const StemBackward<T>& p;
  unsigned windows;  // in a row
  unsigned first;    // of this thread in a step
  unsigned chunk;
  static constexpr unsigned kApart = kBackwardHelpers / kPixelChunks;

  __device__ explicit StemPatches(const StemBackward<T>& of)
      : p(of),
        windows(of.s.width / 2),
        first((threadIdx.x - kBackwardProducts) / kPixelChunks),
        chunk(threadIdx.x % kPixelChunks) {}

  __device__ unsigned in_a_step() const { return 2 * windows; }

  __device__ PatchGradient<T> load(unsigned step, unsigned i) const {
    const bool second = i >= windows;
    const unsigned h = step * 2 + (second ? 1 : 0);  // of all images
    const unsigned w = second ? i - windows : i;
    const unsigned height = p.s.height / 2;
    const bool below = !second || h % height + 1 < height;
    const bool after = w + 1 < windows;
    const std::size_t window = (std::size_t{h} * windows + w) * kChannels + chunk * 8;
    const std::size_t pixel = (std::size_t{2} * h * p.s.width + 2 * w) * kChannels + chunk * 8;
    PatchGradient<T> patch;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const bool inside = (k / 2 == 0 || below) && (k % 2 == 0 || after);
      const std::size_t at = window + (inside ? (k / 2 * windows + k % 2) * kChannels : 0);
      patch.load_window(static_cast<int>(k), p.dsum + at, p.argmax + at, inside);
      patch.load_z(static_cast<int>(k), p.z + pixel + (k / 2 * p.s.width + k % 2) * kChannels);
    }
    return patch;
  }

  __device__ void store(const Pack<T> (&dz)[4], unsigned i, unsigned char* to) const {
    const unsigned h = i >= windows ? 1 : 0;
    const unsigned w = i - h * windows;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      dz[k].store(reinterpret_cast<T*>(to + (2 * h + k / 2) * p.s.row_bytes() +
                                       offset_in_row(2 * w + k % 2, chunk)));
  }
};

/// A warp's product: all channels times 56 elements of the patches.
struct StemWeightGradient {
  static constexpr unsigned kColumns = kPatch / 4;  // of four warps side by side
  static constexpr unsigned kEights = kColumns / 8;
  float x[4][kEights][4] = {};

  /// Adds a step's rows of dz times their patches.
  template <class T>
  __device__ void add(unsigned dz, unsigned image, const Shape& s) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned first = threadIdx.x / 32 * kEights + lane / 16;
    const unsigned pixel = lane % 8 + lane / 8 % 2 * 8;
    unsigned unit[4];  // of a pair of eights
#pragma unroll
    for (unsigned q = 0; q < 4; ++q) {
      const unsigned eight = first + (2 * q + lane / 16 < kEights ? 2 * q : 2 * q - 1);
      unit[q] = eight / 4 * s.pitch() + (eight % 4 + pixel) * kUnit;
    }
    const unsigned dz_pixel = lane % 8 + lane / 16 * 8;
    const unsigned dz_lane = dz_pixel * kPixelBytes + (lane / 8 % 2 ^ swizzle_of(dz_pixel)) * 16;
    for (unsigned row = 0; row < kStepRows; ++row) {
      unsigned left = dz + row * s.row_bytes() + dz_lane;
      unsigned right = image + 2 * row * s.pitch();
#pragma unroll 1
      for (unsigned column = 0; column < s.width; column += 16) {
        unsigned a[4][4];
#pragma unroll
        for (unsigned m = 0; m < 4; ++m) load_transposed(a[m], left ^ (m * 32));
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) {
          unsigned b[4];
          load_transposed(b, right + unit[q]);
#pragma unroll
          for (unsigned e = 0; e < 2; ++e) {
            if (2 * q + e >= kEights) continue;
#pragma unroll
            for (unsigned m = 0; m < 4; ++m)
              multiply<T>(x[m][2 * q + e], a[m], b[2 * e], b[2 * e + 1]);
          }
        }
        left += 16 * kPixelBytes;
        right += 16 * kUnit;
      }
    }
  }

  __device__ void store(float* partial) const {
    const unsigned lane = threadIdx.x % 32;
    const unsigned column = threadIdx.x / 32 * kColumns + lane % 4 * 2;
#pragma unroll
    for (unsigned m = 0; m < 4; ++m)
#pragma unroll
      for (unsigned g = 0; g < kEights; ++g)
#pragma unroll
        for (unsigned i = 0; i < 2; ++i)
          Vector<float, 2>{{x[m][g][2 * i], x[m][g][2 * i + 1]}}.store(
              partial + (16 * m + lane / 4 + 8 * i) * kPatch + column + 8 * g);
  }
};

template <class T>
__global__ void __launch_bounds__(kStemThreads, 1)
    conv_stem_weight_gradient_kernel(StemBackward<T> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Shape& s = p.s;
  unsigned char* const rows = shared + 2 * s.image_bytes();
  const unsigned begin = s.first_step(blockIdx.x);
  const unsigned end = s.first_step(blockIdx.x + 1);
  const auto image = [&](unsigned step) {
    return shared_address(shared) + (step - begin) % 2 * s.image_bytes();
  };
  const auto dz = [&](unsigned step) {
    return rows + (step - begin) % 2 * (kStepRows * s.row_bytes());
  };
  clear_padding(s, shared);
  if (threadIdx.x >= kBackwardProducts) {
    const StemPatches<T> patches(p);
    NormDerivative<8> derivative;
    derivative.load(p.norm, patches.chunk);
    auto next = patches.load(begin, patches.first);
    for (unsigned step = begin; step < end; ++step) {
      load_image<kBackwardProducts>(p.x, s, step, image(step));
      for (unsigned i = patches.first; i < patches.in_a_step(); i += patches.kApart) {
        const auto patch = next;
        if (i + patches.kApart < patches.in_a_step())
          next = patches.load(step, i + patches.kApart);
        else if (step + 1 < end)
          next = patches.load(step + 1, patches.first);
        Pack<T> made[4];
        patch.make(derivative, made);
        patches.store(made, i, dz(step));
      }
      wait_for_copies<0>();
      synchronise_roles();
    }
    synchronise_roles();
    return;
  }
  StemWeightGradient sums;
  synchronise_roles();
  for (unsigned step = begin; step < end; ++step) {
    sums.add<T>(shared_address(dz(step)), image(step), s);
    synchronise_roles();
  }
  sums.store(p.partials + std::size_t{blockIdx.x} * (kChannels * kPatch));
}

/// From a patch's elements, without the pixels that are not in the filter, to 64 x 7 x 7 x 4.
template <class T>
struct FinishWeightGradient {
  T* dw;

  __device__ void operator()(int i, const double (&sums)[1]) const {
    constexpr int kRow = kPatchRow;
    const int element = i % kRow;
    if (element < 4) return;
    dw[i / kRow * static_cast<int>(4 * kTaps) + element - 4] =
        from_float<T>(static_cast<float>(sums[0]));
  }
};

std::size_t backward_bytes(const Shape& s) {  // of shared memory
  return 2 * std::size_t{s.image_bytes()} + 2 * kStepRows * std::size_t{s.row_bytes()};
}

}  // namespace

bool has_conv_stem_weight_gradient(DataType type, const ConvShape& conv) {
  return fits(type, conv) && with_16_bits(type, [&]<class T>(T) {
           return runs_kernel(conv_stem_weight_gradient_kernel<T>,
                              backward_bytes(Shape::of(conv.y())));
         });
}

std::size_t conv_stem_weight_gradient_partials() {
  return std::size_t{multiprocessors()} * kChannels * kPatch;
}

void conv_stem_weight_gradient(const void* dsum, const std::uint8_t* argmax, const void* z,
                               const NormVectors& norm, const void* x, void* dw, float* partials,
                               const Launch& on) {
  const auto s = Shape::of(on.shape);
  with_16_bits(on.type, [&]<class T>(T) {
    launch(conv_stem_weight_gradient_kernel<T>,
           StemBackward<T>{s, as<T>(dsum), argmax, as<T>(z), norm, as<T>(x), partials},
           backward_bytes(s), on.stream);
    finish_partials<1>(FinishWeightGradient<T>{as<T>(dw)}, partials,
                       static_cast<int>(blocks_for(s)), static_cast<int>(kChannels * kPatch),
                       on.stream);
  });
}

}  // namespace shakedown::gpu
