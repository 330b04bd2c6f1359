// The gradient of the stem's weights on tensor cores, from that of what was pooled.
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/norm_kernels.cuh"

namespace shakedown::gpu {
namespace {

using namespace stem;

constexpr unsigned kProducts = 128;
constexpr unsigned kHelpers = 256;

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
  static constexpr unsigned kApart = kHelpers / kPixelChunks;

  __device__ explicit StemPatches(const StemBackward<T>& of)
      : p(of),
        windows(of.s.width / 2),
        first((threadIdx.x - kProducts) / kPixelChunks),
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
__global__ void __launch_bounds__(kProducts + kHelpers, 1)
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
  if (threadIdx.x >= kProducts) {
    const StemPatches<T> patches(p);
    float a[8];
    float b[8];
    float c[8];
    load_channels(p.norm.grad_a, patches.chunk, a);
    load_channels(p.norm.grad_b, patches.chunk, b);
    load_channels(p.norm.grad_c, patches.chunk, c);
    auto next = patches.load(begin, patches.first);
    for (unsigned step = begin; step < end; ++step) {
      load_image<kProducts>(p.x, s, step, image(step));
      for (unsigned i = patches.first; i < patches.in_a_step(); i += patches.kApart) {
        const auto patch = next;
        if (i + patches.kApart < patches.in_a_step())
          next = patches.load(step, i + patches.kApart);
        else if (step + 1 < end)
          next = patches.load(step + 1, patches.first);
        Pack<T> made[4];
        patch.make(a, b, c, made);
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

/// Of shared memory.
std::size_t shared_bytes(const Shape& s) {
  return 2 * std::size_t{s.image_bytes()} + 2 * kStepRows * std::size_t{s.row_bytes()};
}

}  // namespace

bool has_conv_stem_weight_gradient(DataType type, const ConvShape& conv) {
  return fits(type, conv) && with_16_bits(type, [&]<class T>(T) {
           return runs_kernel(conv_stem_weight_gradient_kernel<T>,
                              shared_bytes(Shape::of(conv.y())));
         });
}

std::size_t conv_stem_weight_gradient_partials() {
  return std::size_t{multiprocessors()} * kChannels * kPatch;
}

void conv_stem_weight_gradient(const void* dsum, const std::uint8_t* argmax, const void* z,
                               const NormVectors& norm, const void* x, void* dw,
                               const ActivationShape& shape, DataType type, float* partials,
                               cudaStream_t stream) {
  const auto s = Shape::of(shape);
  with_16_bits(type, [&]<class T>(T) {
    launch(conv_stem_weight_gradient_kernel<T>,
           StemBackward<T>{s, static_cast<const T*>(dsum), argmax, static_cast<const T*>(z), norm,
                           static_cast<const T*>(x), partials},
           kProducts + kHelpers, shared_bytes(s), stream);
    finish_partials<1>(FinishWeightGradient<T>{static_cast<T*>(dw)}, partials,
                       static_cast<int>(blocks_for(s)), static_cast<int>(kChannels * kPatch),
                       stream);
  });
}

}  // namespace shakedown::gpu
