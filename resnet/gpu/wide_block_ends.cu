// The ends of blocks on wgmma (unit_kernels.hpp). Compiled for sm_90a alone. A block of threads
// has the weights of 256 columns and multiplies tiles of rows, 64 columns by each of four
// warpgroups, while the next tile of the tensor that is added is on its way. Two of them multiply
// while the other two store.
#include "common/ensure.hpp"
#include "resnet/gpu/unit_kernels.hpp"

#include "resnet/gpu/wgmma.cuh"

namespace shakedown::gpu {
namespace {

/// Of ends whose product's depth is a quarter of their channels.
template <unsigned channels>
struct EndPipes : Pipes<channels, 256, 64, channels / 4 / kTileDepth, 4, 8, 112, 24> {
  using Base = Pipes<channels, 256, 64, channels / 4 / kTileDepth, 4, 8, 112, 24>;
  static constexpr unsigned kTilesAhead = Base::kStages / Base::kSteps;  // in the ring
  static constexpr unsigned kConsumers = Base::kPipes * kGroupThreads;   // threads that multiply
  // after the barriers: the columns' scale, shift, and the shortcut's scale
  static constexpr unsigned kNorms = (Base::kBarrierBytes + 15) / 16 * 16;
  static constexpr unsigned kNormBytes = Base::kColumns * sizeof(float);
  static constexpr unsigned kSharedBytes = Base::kSharedBytes + 16 + 3 * kNormBytes;
};

/// Bits of the columns of a row in a product.
template <class P>
using MaskRow = Vector<unsigned, P::kWide / 32>;

/// Where the weight of a column of the block (in the order in which a thread's eight columns are
/// adjacent) and of a row of the depth is in shared memory.
template <class P>
__device__ unsigned weight_place(const Places<P>& at, unsigned column, unsigned depth) {
  const unsigned row = placed_column(column);
  return at.weights + depth / kTileDepth * P::kStepBytes + row * (kTileDepth * 2) +
         ((depth % kTileDepth / 8) ^ (row & 7U)) * 16 + depth % 8 * 2;
}

template <class P, class T>
struct ForwardEnd {
  unsigned rows;
  bool backwards;     // the last tile first
  const T* w;         // channels x depth
  const T* shortcut;  // rows x channels, as everything below
  T* y;
  std::uint8_t* mask;
  NormVectors norm;
  NormVectors shortcut_norm;
};

/// The weights, and the norms: in a cache these would not outlast the tensors.
template <bool kNormShortcut, class P, class T>
__device__ void place(const ForwardEnd<P, T>& p, const Places<P>& at) {
  constexpr unsigned kChunks = P::kDepth / 8;
  for (unsigned i = threadIdx.x; i < P::kColumns * kChunks; i += P::kConsumers) {
    const unsigned column = i / kChunks;
    const unsigned depth = i % kChunks * 8;
    copy_16(weight_place(at, column, depth),
            p.w + std::size_t{P::first_column() + column} * P::kDepth + depth, true);
  }
  commit_copies();
  if (threadIdx.x < P::kColumns) {
    const unsigned c = P::first_column() + threadIdx.x;
    const unsigned to = at.barriers + P::kNorms + threadIdx.x * sizeof(float);
    float shift = p.norm.shift[c];
    if constexpr (kNormShortcut) {
      shift += p.shortcut_norm.shift[c];
      store_shared(to + 2 * P::kNormBytes, p.shortcut_norm.scale[c]);
    }
    store_shared(to, p.norm.scale[c]);
    store_shared(to + P::kNormBytes, shift);
  }
  wait_for_copies<0>();
}

/// The rows of the products of a tile and its shortcut become y and its mask.
template <bool kNormShortcut, class P, class T>
__device__ void finish(const ForwardEnd<P, T>& p, const Places<P>& at,
                       const GroupProduct<P, T>& product, Fragment<P, T>& shortcut) {
  MaskRow<P> words[2];
#pragma unroll
  for (unsigned q = 0; q < P::kWide / 32; ++q) {
    unsigned bits[2] = {};
#pragma unroll
    for (unsigned four = 0; four < 8; four += 4) {
      const unsigned c = shortcut.channel(q) + four - P::first_column();
      const unsigned from = at.barriers + P::kNorms + c * sizeof(float);
      const auto scale = load_shared_4(from);
      const auto shift = load_shared_4(from + P::kNormBytes);
      Vector<float, 4> of_shortcut{1, 1, 1, 1};
      if constexpr (kNormShortcut) of_shortcut = load_shared_4(from + 2 * P::kNormBytes);
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
#pragma unroll
        for (unsigned v = 0; v < 4; ++v) {
          T& out = shortcut.vector[q][half].x[four + v];
          const float sum = product.at(q, half, four + v) * scale.x[v] + shift.x[v] +
                            to_float(out) * of_shortcut.x[v];
          bits[half] |= relu_passes(sum) ? 1U << (four + v) : 0U;
          out = from_float<T>(relu(sum));
        }
    }
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {  // four lanes have a row
      unsigned word = bits[half] << threadIdx.x % 4 * 8;
      word |= __shfl_xor_sync(~0U, word, 1);
      words[half].x[q] = word | __shfl_xor_sync(~0U, word, 2);
    }
    shortcut.store_group(q, p.y, p.rows);
  }
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = shortcut.row_of(half);
    if (threadIdx.x % 4 == 0 && row < p.rows)
      *reinterpret_cast<MaskRow<P>*>(p.mask + (std::size_t{row} * P::kChannels + shortcut.column) /
                                                  8) = words[half];
  }
}

template <class P, class T>
struct BackwardEnd {
  unsigned rows;
  bool backwards;
  const T* w;   // depth x channels
  const T* dy;  // rows x channels, as everything below
  const std::uint8_t* mask;
  T* dsum;
  float* partials;  // gridDim.x x channels
};

template <bool, class P, class T>
__device__ void place(const BackwardEnd<P, T>& p, const Places<P>& at) {
  constexpr unsigned kPairs = P::kDepth / 2;  // of rows: their elements become adjacent
  constexpr unsigned kOfThread = P::kColumns / 8 * kPairs / P::kConsumers;
  static_assert(P::kConsumers % kPairs == 0);
  const unsigned depth = threadIdx.x % kPairs * 2;
  const auto column = [&](unsigned i) { return (threadIdx.x + i * P::kConsumers) / kPairs * 8; };
  Pack<T> even[kOfThread], odd[kOfThread];  // all at once: their latency is what this takes
#pragma unroll
  for (unsigned i = 0; i < kOfThread; ++i) {
    const T* from = p.w + std::size_t{depth} * P::kChannels + P::first_column() + column(i);
    even[i] = Pack<T>::load(from);
    odd[i] = Pack<T>::load(from + P::kChannels);
  }
#pragma unroll
  for (unsigned i = 0; i < kOfThread; ++i)
#pragma unroll
    for (unsigned v = 0; v < 8; ++v)
      store_shared(weight_place(at, column(i) + v, depth), Vector<T, 2>{even[i].x[v], odd[i].x[v]});
}

/// A thread's rows of dy and their masks in a tile.
template <class P, class T>
struct MaskedFragment : Fragment<P, T> {
  MaskRow<P> mask[2];

  __device__ void load(const BackwardEnd<P, T>& p) {
    Fragment<P, T>::load(p.dy, p.rows);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const std::size_t row = min(this->row_of(half), p.rows - 1);
      mask[half] =
          *reinterpret_cast<const MaskRow<P>*>(p.mask + (row * P::kChannels + this->column) / 8);
    }
  }
};

/// dy of a tile becomes dsum, which is added to the sums.
template <class P, class T>
__device__ void finish(const BackwardEnd<P, T>& p, const GroupProduct<P, T>& product,
                       MaskedFragment<P, T>& dy, float (&sums)[P::kWide / 32][8]) {
#pragma unroll
  for (unsigned q = 0; q < P::kWide / 32; ++q) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const bool exists = dy.row_of(half) < p.rows;
      const unsigned bits = exists ? dy.mask[half].x[q] >> threadIdx.x % 4 * 8 : 0U;
#pragma unroll
      for (unsigned v = 0; v < 8; ++v) {
        T& out = dy.vector[q][half].x[v];
        out = from_float<T>(bits >> v & 1U ? product.at(q, half, v) + to_float(out) : 0.0F);
        sums[q][v] += to_float(out);
      }
    }
    dy.store_group(q, p.dsum, p.rows);
  }
}

/// Of the tile that is `tile`-th in order.
__device__ inline unsigned first_row_of(unsigned tile, unsigned tiles, bool backwards) {
  return (backwards ? tiles - 1 - tile : tile) * kTileRows;
}

/// One thread: fills the ring, whose stages are whole tiles.
template <class P>
__device__ void produce(const Places<P>& at, unsigned tiles, bool backwards,
                        const CUtensorMap* from) {
  unsigned turn = 0;
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++turn) {
    const unsigned stage = turn % P::kTilesAhead;
    if (turn >= P::kTilesAhead) wait_for(at.empty(0, stage), (turn / P::kTilesAhead - 1) & 1U);
    arrive_and_expect(at.full(0, stage), P::kSteps * kTileBytes);
#pragma unroll
    for (unsigned step = 0; step < P::kSteps; ++step)
      copy_box(at.tile(0, stage * P::kSteps + step), from, step * kTileDepth,
               first_row_of(tile, tiles, backwards), at.full(0, stage));
  }
}

/// The product of the block's `turn`-th tile.
template <class P, class T>
__device__ void multiply(GroupProduct<P, T>& product, const Places<P>& at, unsigned pipe,
                         unsigned turn) {
  const unsigned stage = turn % P::kTilesAhead;
  const std::uint64_t a = matrix_at(at.tile(0, stage * P::kSteps));
  const std::uint64_t b = matrix_at(at.weights + P::column_of(pipe) * (kTileDepth * 2));
  wait_for(at.full(0, stage), turn / P::kTilesAhead & 1U);
  fence_products();
#pragma unroll
  for (unsigned step = 0; step < P::kSteps; ++step)
#pragma unroll
    for (unsigned k = 0; k < kTileDepth / 16; ++k)
      multiply_wide<T>(product.x, a + step * (kTileBytes / 16) + k * kNextSixteen,
                       b + step * (P::kStepBytes / 16) + k * kNextSixteen, step + k == 0);
  commit_products();
  wait_for_products<0>();
  pin(product.x);
  if (threadIdx.x % 32 == 0) arrive(at.empty(0, stage));
}

/// Calls finish(product, fragment) for each tile. A fragment is loaded while the product before it
/// is finished and its own computed.
template <class FragmentOfEnd, class P, class T, class Load, class Finish>
__device__ void for_products(const Places<P>& at, unsigned pipe, unsigned tiles, bool backwards,
                             Load&& load, Finish&& finish) {
  constexpr unsigned kFirstTurn = 2;  // a barrier of each half of the warpgroups
  const unsigned half = pipe / (P::kPipes / 2);
  if (half == 1) arrive_some(kFirstTurn, P::kConsumers);  // the other half begins
  FragmentOfEnd next;
  next.column = P::first_column() + P::column_of(pipe);
  next.first_row = first_row_of(blockIdx.x, tiles, backwards);
  load(next);
  unsigned turn = 0;
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++turn) {
    const bool last = tile + gridDim.x >= tiles;
    GroupProduct<P, T> product;
    synchronise_some(kFirstTurn + half, P::kConsumers);
    multiply(product, at, pipe, turn);
    if (half == 0 || !last) arrive_some(kFirstTurn + 1 - half, P::kConsumers);
    FragmentOfEnd fragment = next;
    fragment.keep();
    if (!last) {
      next.first_row = first_row_of(tile + gridDim.x, tiles, backwards);
      load(next);
    }
    next.keep();
    finish(product, fragment);
  }
}

template <bool kNormShortcut, class P, class T>
__device__ void consume(const ForwardEnd<P, T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles) {
  using Shortcut = Fragment<P, T>;
  for_products<Shortcut, P, T>(
      at, pipe, tiles, p.backwards, [&](Shortcut& next) { next.load(p.shortcut, p.rows); },
      [&](const auto& product, Shortcut& shortcut) {
        finish<kNormShortcut>(p, at, product, shortcut);
      });
}

template <bool, class P, class T>
__device__ void consume(const BackwardEnd<P, T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles) {
  using Dy = MaskedFragment<P, T>;
  float sums[1][P::kWide / 32][8] = {};
  for_products<Dy, P, T>(
      at, pipe, tiles, p.backwards, [&](Dy& next) { next.load(p); },
      [&](const auto& product, Dy& dy) { finish(p, product, dy, sums[0]); });
  write_group_sums<P>(sums, at, pipe,
                      p.partials + std::size_t{blockIdx.x} * P::kChannels + P::first_column());
}

template <bool kNormShortcut, class P, class T, class End>
__global__ void __launch_bounds__(P::kBlockThreads, 1)
    wide_end_kernel(const __grid_constant__ CUtensorMap from, const End p) {
  extern __shared__ unsigned char memory[];
  const Places<P> at(shared_address(memory));
  const unsigned group = threadIdx.x / kGroupThreads;
  const unsigned tiles = (p.rows + kTileRows - 1) / kTileRows;
  if (threadIdx.x == 0) at.make_barriers();
  __syncthreads();
  if (group < P::kPipes) {
    take_registers<P::kRegisters>();
    place<kNormShortcut>(p, at);
    publish_shared();
    synchronise_some(1, P::kConsumers);
    consume<kNormShortcut, P, T>(p, at, group, tiles);
  } else {
    give_registers_back<P::kProducerRegisters>();
    if (threadIdx.x % kGroupThreads == 0) produce(at, tiles, p.backwards, &from);
  }
}

template <class P>
unsigned blocks_of(unsigned rows) {
  const unsigned tiles = (rows + kTileRows - 1) / kTileRows;
  return std::max(1U, std::min(multiprocessors() / (P::kChannels / P::kColumns), tiles));
}

template <bool kNormShortcut, class P, class T, class End>
void launch(const void* left, const End& work, const Launch& on) {
  const auto kernel = wide_end_kernel<kNormShortcut, P, T, End>;
  blocks_at_once(kernel, P::kBlockThreads, P::kSharedBytes);
  kernel<<<dim3(blocks_of<P>(work.rows), P::kChannels / P::kColumns), P::kBlockThreads,
           P::kSharedBytes, on.stream>>>(matrix_of(left, on.type, P::kDepth, work.rows, kTileRows),
                                         work);
  CHECK_LAUNCH();
}

/// Whether the device runs the kernel that has an End<P, T>.
template <template <class, class> class End>
bool has_end(DataType type, int depth, int channels) {
  return size_of(type) == 2 && (channels == 512 || channels == 1024) && depth * 4 == channels &&
         with_constant<512, 1024>(channels, [&]<int kChannels>() {
           using P = EndPipes<kChannels>;
           return runs_on_hopper(wide_end_kernel<false, P, __half, End<P, __half>>,
                                 P::kSharedBytes);
         });
}

/// Calls body.operator()<T, EndPipes>(rows).
template <class Body>
auto with_pipes(const Launch& on, Body&& body) {
  return with_16_bits(on.type, [&]<class T>(T) {
    return with_constant<512, 1024>(on.shape.c, [&]<int kChannels>() {
      return body.template operator()<T, EndPipes<kChannels>>(
          static_cast<unsigned>(on.shape.count() / kChannels));
    });
  });
}

}  // namespace

bool has_wide_conv_normalise_add_relu(DataType type, int depth, int channels) {
  return has_end<ForwardEnd>(type, depth, channels);
}

bool has_wide_conv_add_relu_backward(DataType type, int depth, int channels) {
  return has_end<BackwardEnd>(type, depth, channels);
}

void wide_conv_normalise_add_relu(const ForwardProduct& product, const BlockEnd& end,
                                  const Launch& on) {
  with_pipes(on, [&]<class T, class P>(unsigned rows) {
    const ForwardEnd<P, T> work{rows,
                                runs_backwards(on.shape.count() * sizeof(T)),
                                as<T>(product.w),
                                as<T>(end.shortcut),
                                as<T>(end.y),
                                end.mask,
                                end.norm,
                                end.shortcut_norm.value_or(NormVectors{})};
    if (end.shortcut_norm)
      launch<true, P, T>(product.x, work, on);
    else
      launch<false, P, T>(product.x, work, on);
  });
}

int wide_conv_add_relu_backward(const GradientProduct& product, const void* dy,
                                const std::uint8_t* mask, void* dsum, float* partials,
                                const Launch& on) {
  return with_pipes(on, [&]<class T, class P>(unsigned rows) {
    const unsigned parts = blocks_of<P>(rows);
    ENSURE(parts * P::kChannels <= reduction_scratch(on.shape, on.type, 1),
           "room for partial sums");
    launch<false, P, T>(
        product.dz,
        BackwardEnd<P, T>{rows, false, as<T>(product.w), as<T>(dy), mask, as<T>(dsum), partials},
        on);
    return static_cast<int>(parts);
  });
}

}  // namespace shakedown::gpu
