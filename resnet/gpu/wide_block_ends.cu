// The ends of blocks on wgmma (wide_block_ends.hpp). Compiled for sm_90a alone. A block of threads
// has the weights of 256 columns and multiplies tiles of rows, 64 columns by each of four
// warpgroups, while the next tile of the tensor that is added is on its way.
#include "resnet/gpu/wide_block_ends.hpp"

#include "resnet/gpu/warpgroup_tiles.cuh"

namespace shakedown::gpu {
namespace {

constexpr unsigned kDepth = 256;
constexpr unsigned kChannels = 1024;
using P = Pipes<kChannels, 256, 64, kDepth / kTileDepth, 4, 8, 112, 24>;

/// Bits of the columns of a row in a product.
using MaskRow = Vector<unsigned, P::kWide / 32>;

/// Where the weight of a column of the block (in the order in which a thread's eight columns are
/// adjacent) and of a row of the depth is in shared memory.
__device__ unsigned weight_place(const Places<P>& at, unsigned column, unsigned depth) {
  const unsigned row = placed_column(column);
  return at.weights + depth / kTileDepth * P::kStepBytes + row * (kTileDepth * 2) +
         ((depth % kTileDepth / 8) ^ (row & 7U)) * 16 + depth % 8 * 2;
}

template <class T>
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

template <class T>
__device__ void place_weights(const ForwardEnd<T>& p, const Places<P>& at, unsigned first_column) {
  constexpr unsigned kChunks = kDepth / 8;
  for (unsigned i = threadIdx.x; i < P::kColumns * kChunks; i += P::kPipes * kGroupThreads) {
    const unsigned column = i / kChunks;
    const unsigned depth = i % kChunks * 8;
    copy_16(weight_place(at, column, depth),
            p.w + std::size_t{first_column + column} * kDepth + depth, true);
  }
  commit_copies();
  wait_for_copies<0>();
}

/// The rows of the products of a tile and its shortcut become y and its mask.
template <bool kNormShortcut, class T>
__device__ void finish(const ForwardEnd<T>& p, const GroupProduct<P, T>& product,
                       Fragment<P, T>& shortcut) {
  MaskRow words[2];
#pragma unroll
  for (unsigned q = 0; q < P::kWide / 32; ++q) {
    unsigned bits[2] = {};
#pragma unroll
    for (unsigned four = 0; four < 8; four += 4) {
      const unsigned c = shortcut.channel(q) + four;
      const auto scale = Vector<float, 4>::load(p.norm.scale + c);
      auto shift = Vector<float, 4>::load(p.norm.shift + c);
      Vector<float, 4> of_shortcut{1, 1, 1, 1};
      if constexpr (kNormShortcut) {
        of_shortcut = Vector<float, 4>::load(p.shortcut_norm.scale + c);
        const auto more = Vector<float, 4>::load(p.shortcut_norm.shift + c);
#pragma unroll
        for (unsigned v = 0; v < 4; ++v) shift.x[v] += more.x[v];
      }
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
      *reinterpret_cast<MaskRow*>(p.mask + (std::size_t{row} * kChannels + shortcut.column) / 8) =
          words[half];
  }
}

template <class T>
struct BackwardEnd {
  unsigned rows;
  bool backwards;
  const T* w;   // depth x channels
  const T* dy;  // rows x channels, as everything below
  const std::uint8_t* mask;
  T* dsum;
  float* partials;  // gridDim.x x channels
};

template <class T>
__device__ void place_weights(const BackwardEnd<T>& p, const Places<P>& at, unsigned first_column) {
  constexpr unsigned kPairs = kDepth / 2;  // of rows: their elements become adjacent
  constexpr unsigned kThreadsOfAll = P::kPipes * kGroupThreads;
  constexpr unsigned kOfThread = P::kColumns / 8 * kPairs / kThreadsOfAll;
  static_assert(kThreadsOfAll % kPairs == 0);
  const unsigned depth = threadIdx.x % kPairs * 2;
  const auto column = [&](unsigned i) { return (threadIdx.x + i * kThreadsOfAll) / kPairs * 8; };
  Pack<T> even[kOfThread], odd[kOfThread];  // all at once: their latency is what this takes
#pragma unroll
  for (unsigned i = 0; i < kOfThread; ++i) {
    const T* from = p.w + std::size_t{depth} * kChannels + first_column + column(i);
    even[i] = Pack<T>::load(from);
    odd[i] = Pack<T>::load(from + kChannels);
  }
#pragma unroll
  for (unsigned i = 0; i < kOfThread; ++i)
#pragma unroll
    for (unsigned v = 0; v < 8; ++v)
      store_shared(weight_place(at, column(i) + v, depth), Vector<T, 2>{even[i].x[v], odd[i].x[v]});
}

/// A thread's rows of dy and their masks in a tile.
template <class T>
struct MaskedFragment : Fragment<P, T> {
  MaskRow mask[2];

  __device__ void load(const BackwardEnd<T>& p) {
    Fragment<P, T>::load(p.dy, p.rows);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const std::size_t row = min(this->row_of(half), p.rows - 1);
      mask[half] = *reinterpret_cast<const MaskRow*>(p.mask + (row * kChannels + this->column) / 8);
    }
  }
};

/// dy of a tile becomes dsum, which is added to the sums.
template <class T>
__device__ void finish(const BackwardEnd<T>& p, const GroupProduct<P, T>& product,
                       MaskedFragment<T>& dy, float (&sums)[P::kWide / 32][8]) {
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

/// One thread: fills the ring.
__device__ void produce(const Places<P>& at, unsigned tiles, bool backwards,
                        const CUtensorMap* from) {
  unsigned turn = 0;  // of stages
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x)
    for (unsigned step = 0; step < P::kSteps; ++step, ++turn) {
      const unsigned stage = turn % P::kStages;
      if (turn >= P::kStages) wait_for(at.empty(0, stage), (turn / P::kStages - 1) & 1U);
      arrive_and_expect(at.full(0, stage), kTileBytes);
      copy_box(at.tile(0, stage), from, step * kTileDepth, first_row_of(tile, tiles, backwards),
               at.full(0, stage));
    }
}

/// Calls finish(product, fragment) for each tile. A fragment is loaded while the product before it
/// is finished and its own computed.
template <class FragmentOfEnd, class T, class Load, class Finish>
__device__ void for_products(const Places<P>& at, unsigned pipe, unsigned tiles, bool backwards,
                             Load&& load, Finish&& finish) {
  FragmentOfEnd next;
  next.column = P::first_column() + P::column_of(pipe);
  next.first_row = first_row_of(blockIdx.x, tiles, backwards);
  load(next);
  unsigned stages = 0;
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    GroupProduct<P, T> product;
    product.add(at, pipe, 0, P::kSteps, stages);
    FragmentOfEnd fragment = next;
    if (tile + gridDim.x < tiles) {
      next.first_row = first_row_of(tile + gridDim.x, tiles, backwards);
      load(next);
    }
    finish(product, fragment);
  }
}

template <bool kNormShortcut, class T>
__device__ void consume(const ForwardEnd<T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles) {
  using Shortcut = Fragment<P, T>;
  for_products<Shortcut, T>(
      at, pipe, tiles, p.backwards, [&](Shortcut& next) { next.load(p.shortcut, p.rows); },
      [&](const auto& product, Shortcut& shortcut) {
        finish<kNormShortcut>(p, product, shortcut);
      });
}

template <bool, class T>
__device__ void consume(const BackwardEnd<T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles) {
  using Dy = MaskedFragment<T>;
  float sums[1][P::kWide / 32][8] = {};
  for_products<Dy, T>(
      at, pipe, tiles, p.backwards, [&](Dy& next) { next.load(p); },
      [&](const auto& product, Dy& dy) { finish(p, product, dy, sums[0]); });
  write_group_sums<P>(sums, at, pipe,
                      p.partials + std::size_t{blockIdx.x} * kChannels + P::first_column());
}

template <class T, class End, bool kNormShortcut>
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
    place_weights(p, at, P::first_column());
    publish_shared();
    synchronise_some(1, P::kPipes * kGroupThreads);
    consume<kNormShortcut>(p, at, group, tiles);
  } else {
    give_registers_back<P::kProducerRegisters>();
    if (threadIdx.x % kGroupThreads == 0) produce(at, tiles, p.backwards, &from);
  }
}

unsigned blocks_of(unsigned rows) {
  const unsigned tiles = (rows + kTileRows - 1) / kTileRows;
  return std::max(1U, std::min(multiprocessors() / (kChannels / P::kColumns), tiles));
}

template <bool kNormShortcut, class T, class End>
void launch(const void* left, const End& work, DataType type, cudaStream_t stream) {
  const auto kernel = wide_end_kernel<T, End, kNormShortcut>;
  blocks_at_once(kernel, P::kBlockThreads, P::kSharedBytes);
  kernel<<<dim3(blocks_of(work.rows), kChannels / P::kColumns), P::kBlockThreads, P::kSharedBytes,
           stream>>>(matrix_of(left, type, kDepth, work.rows, kTileRows), work);
  CHECK_LAUNCH();
}

unsigned rows_of(const ActivationShape& shape) {
  return static_cast<unsigned>(shape.count() / kChannels);
}

template <class End>
bool runs(DataType type, int depth, int channels) {
  return size_of(type) == 2 && depth == static_cast<int>(kDepth) &&
         channels == static_cast<int>(kChannels) &&
         runs_on_hopper(wide_end_kernel<__half, End, false>, P::kSharedBytes);
}

}  // namespace

bool has_wide_conv_normalise_add_relu(DataType type, int depth, int channels) {
  return runs<ForwardEnd<__half>>(type, depth, channels);
}

bool has_wide_conv_add_relu_backward(DataType type, int depth, int channels) {
  return runs<BackwardEnd<__half>>(type, depth, channels);
}

void wide_conv_normalise_add_relu(const ForwardProduct& product, const NormVectors& norm,
                                  const void* shortcut, const NormVectors* shortcut_norm, void* y,
                                  std::uint8_t* mask, const ActivationShape& shape, DataType type,
                                  cudaStream_t stream) {
  with_16_bits(type, [&]<class T>(T) {
    const ForwardEnd<T> work{rows_of(shape),
                             runs_backwards(shape.count() * sizeof(T)),
                             static_cast<const T*>(product.w),
                             static_cast<const T*>(shortcut),
                             static_cast<T*>(y),
                             mask,
                             norm,
                             shortcut_norm != nullptr ? *shortcut_norm : NormVectors{}};
    if (shortcut_norm != nullptr)
      launch<true, T>(product.x, work, type, stream);
    else
      launch<false, T>(product.x, work, type, stream);
  });
}

int wide_conv_add_relu_backward(const GradientProduct& product, const void* dy,
                                const std::uint8_t* mask, void* dsum, const ActivationShape& shape,
                                DataType type, float* partials, cudaStream_t stream) {
  const unsigned rows = rows_of(shape);
  const unsigned parts = blocks_of(rows);
  ENSURE(parts * kChannels <= reduction_scratch(shape, type, 1), "room for partial sums");
  with_16_bits(type, [&]<class T>(T) {
    const BackwardEnd<T> work{rows,
                              false,
                              static_cast<const T*>(product.w),
                              static_cast<const T*>(dy),
                              mask,
                              static_cast<T*>(dsum),
                              partials};
    launch<false, T>(product.dz, work, type, stream);
  });
  return static_cast<int>(parts);
}

}  // namespace shakedown::gpu
