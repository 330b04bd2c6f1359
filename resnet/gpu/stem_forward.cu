// The stem's convolution on tensor cores, with max-pooling and the norm's sums.
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/norm_kernels.cuh"

namespace shakedown::gpu {
namespace {

using namespace stem;

// Threads. The weights take most of the registers: there is no room for more warps.
constexpr unsigned kProducts = 256;
constexpr unsigned kHelpers = 128;
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
       tile < kStepRows * tiles; tile += kProducts / 64) {
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
  const unsigned helper = threadIdx.x - kProducts;
  const unsigned chunk = helper % kPixelChunks;
  const unsigned windows = s.width / 2;
  const unsigned char* row[kStepRows + 1];
#pragma unroll
  for (unsigned k = 0; k <= kStepRows; ++k)
    row[k] = kept.rows + (place + k) % kRowsKept * s.row_bytes();
  const bool first = step % s.steps_per_image == 0;
  for (unsigned i = helper / kPixelChunks; i < 2 * windows; i += kHelpers / kPixelChunks) {
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
__global__ void __launch_bounds__(kProducts + kHelpers, 1) conv_stem_pool_kernel(StemForward<T> p) {
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
  if (threadIdx.x < kProducts) {
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
    load_image<kProducts>(p.x, s, begin, image(begin));
    wait_for_copies<0>();
    synchronise_roles();
    for (unsigned step = begin; step <= last; ++step) {
      if (step + 1 < last) load_image<kProducts>(p.x, s, step + 1, image(step + 1));
      if (step > first) pool_step(p, step - 1, kept, place(step - 1), turned);
      wait_for_copies<0>();
      synchronise_roles();
    }
  }
  // Of two warps side by side, and pairs below one another; the helpers have no sums.
  constexpr unsigned kPairs = (kProducts + kHelpers) / 64;
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

/// Of shared memory.
std::size_t shared_bytes(const Shape& s) {
  return 2 * std::size_t{s.image_bytes()} + kRowsKept * std::size_t{s.row_bytes()} +
         kChannels * sizeof(float) + kUnit;
}

}  // namespace

bool has_conv_stem_pool(DataType type, const ConvShape& conv) {
  return fits(type, conv) && with_16_bits(type, [&]<class T>(T) {
           return runs_kernel(conv_stem_pool_kernel<T>, shared_bytes(Shape::of(conv.y())));
         });
}

std::size_t conv_stem_pool_partials() { return std::size_t{multiprocessors()} * 2 * kChannels; }

int conv_stem_pool(const void* x, const void* w, const NormParameters& parameters, void* z,
                   void* peak, std::uint8_t* argmax, const ActivationShape& shape, DataType type,
                   float* partials, cudaStream_t stream) {
  const auto s = Shape::of(shape);
  with_16_bits(type, [&]<class T>(T) {
    launch(conv_stem_pool_kernel<T>,
           StemForward<T>{s, static_cast<const T*>(x), static_cast<const T*>(w), parameters.gamma,
                          parameters.running_mean, static_cast<T*>(z), static_cast<T*>(peak),
                          argmax, partials},
           kProducts + kHelpers, shared_bytes(s), stream);
  });
  return static_cast<int>(blocks_for(s));
}

void finish_conv_stem_pool(const float* partials, int count, const NormParameters& parameters,
                           const NormVectors& norm, const ActivationShape& shape,
                           cudaStream_t stream) {
  finish_partials<2>(FinishStemStatistics{parameters, norm, Count::of(shape)}, partials, count,
                     shape.c, stream);
}

}  // namespace shakedown::gpu
