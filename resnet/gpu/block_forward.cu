// The end of a block, where its last convolution is 1x1 of stride 1 and the vectors of the norm
// after it are known before it runs (unit_kernels.hpp): the convolution, the norm, the shortcut,
// the ReLU and its mask in one kernel, so that the product never goes to memory. Tensor cores
// compute it while the shortcut is loaded.
#include "resnet/gpu/fragment_places.hpp"
#include "resnet/gpu/mma.cuh"

namespace shakedown::gpu {
namespace {

// A block computes tiles of kRows x kColumns, one below the other, kDepth of the sum at a time. It
// keeps its columns' weights, and a ring of kStages stages of its rows of x is in flight.
constexpr unsigned kRows = 64;
constexpr unsigned kColumns = 128;
constexpr unsigned kDepth = 64;
constexpr unsigned kStages = 4;
constexpr unsigned kSlabBytes = kColumns * kDepth * 2;  // of the weights
constexpr int kBlocksAtOnce = 2;                        // resident per SM

template <class T>
using RowRing = Ring<T, kRows, kDepth, kStages>;

template <class T>
struct BlockForward {
  const T* x;         // rows x depth
  const T* w;         // channels x depth
  const T* shortcut;  // rows x channels, as everything below
  T* y;
  std::uint8_t* mask;
  NormVectors norm;
  NormVectors shortcut_norm;
  unsigned rows;
  unsigned depth;
  unsigned channels;
  bool backwards;
};

/// Starts copies of the columns' weights to shared memory: slabs of kDepth, a row per column, in
/// the order in which a thread's eight columns of a product are adjacent.
template <class T>
__device__ void copy_weights(const T* w, unsigned depth, unsigned to) {
  for (unsigned i = threadIdx.x; i < kColumns * depth / 8; i += kThreads) {
    const unsigned slab = i / (kColumns * kDepth / 8);
    const unsigned column = i / (kDepth / 8) % kColumns;
    const unsigned chunk = i % (kDepth / 8);
    copy_16(to + slab * kSlabBytes + swizzled_offset<kDepth / 8>(placed_column(column), chunk),
            w + std::size_t{column} * depth + slab * kDepth + chunk * 8, true);
  }
}

/// Normalises eight channels and adds the shortcut, normalised with kNormShortcut.
template <bool kNormShortcut>
struct Affine {
  float scale[8];
  float shift[8];
  float shortcut_scale[8];

  __device__ Affine(const NormVectors& norm, const NormVectors& shortcut, unsigned group) {
    load_channels(norm.scale, group, scale);
    load_channels(norm.shift, group, shift);
    if constexpr (kNormShortcut) {
      float shortcut_shift[8];
      load_channels(shortcut.scale, group, shortcut_scale);
      load_channels(shortcut.shift, group, shortcut_shift);
#pragma unroll
      for (int v = 0; v < 8; ++v) shift[v] += shortcut_shift[v];
    }
  }
  __device__ float sum(float z, float s, int v) const {
    return z * scale[v] + shift[v] + (kNormShortcut ? s * shortcut_scale[v] : s);
  }
};

/// A row's part of the mask in a tile. It is written at once: bytes from every warp would be four
/// times as many writes of parts of a sector.
struct alignas(16) MaskRow {
  std::uint8_t bytes[kColumns / 8];
};

template <class T, bool kNormShortcut>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    block_forward_kernel(const BlockForward<T> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned weights_at = shared_address(memory);
  const unsigned weight_bytes = p.depth * kColumns * 2;
  // of a tile and the one before
  auto* const mask =
      reinterpret_cast<MaskRow(*)[kRows]>(memory + weight_bytes + RowRing<T>::kBytes);
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp_row = threadIdx.x / 32 / 4 * kWarpTile;
  const unsigned warp_column = threadIdx.x / 32 % 4 * kWarpTile;
  const unsigned first_column = blockIdx.x * kColumns;
  RowRing<T> ring(p.x, p.rows, p.depth, weights_at + weight_bytes, p.backwards);
  copy_weights(p.w + std::size_t{first_column} * p.depth, p.depth, weights_at);
  ring.begin();  // the first stage with the weights

  unsigned turn = 0;  // of tiles
  // Writes the mask of the tile before, which all threads have finished.
  const auto write_mask = [&](unsigned tile_before) {
    const unsigned row = ring.first_row(tile_before) + threadIdx.x;
    if (threadIdx.x < kRows && row < p.rows)
      *reinterpret_cast<MaskRow*>(p.mask + (std::size_t{row} * p.channels + first_column) / 8) =
          mask[(turn - 1) % 2][threadIdx.x];
  };

  const unsigned channel = first_column + warp_column + lane % 4 * 8;
  const Affine<kNormShortcut> affine(p.norm, p.shortcut_norm, channel / 8);
  unsigned tile = blockIdx.y;
  for (; tile < ring.tiles; tile += gridDim.y, ++turn) {
    // A thread's fragment is four rows, eight apart, of eight channels. All its loads are in flight
    // at once; beyond the end they read the last row.
    const auto row_of = [&](int row) {
      return ring.first_row(tile) + warp_row + lane / 4 + static_cast<unsigned>(row) * 8;
    };
    const auto vector_of = [&](int row) {
      return min(row_of(row), p.rows - 1) * (p.channels / 8) + channel / 8;
    };
    Pack<T> added[4];
#pragma unroll
    for (int row = 0; row < 4; ++row)
      added[row] = Pack<T>::load(p.shortcut + std::size_t{vector_of(row)} * 8);

    WarpProduct product;
    for (unsigned depth = 0; depth < p.depth; depth += kDepth) {
      const unsigned stage = ring.next();
      if (depth == 0 && turn > 0) write_mask(tile - gridDim.y);
      product.add<T, kDepth, kColumns, Stored::by_column>(stage, warp_row, weights_at, depth,
                                                          warp_column);
    }

#pragma unroll
    for (int row = 0; row < 4; ++row) {
      unsigned bits = 0;
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        T& out = added[row].x[v];
        const float sum = affine.sum(product.at(row, v), to_float(out), v);
        bits |= relu_passes(sum) ? 1U << v : 0U;
        out = from_float<T>(relu(sum));
      }
      mask[turn % 2][warp_row + lane / 4 + static_cast<unsigned>(row) * 8]
          .bytes[warp_column / 8 + lane % 4] = static_cast<std::uint8_t>(bits);
      if (row_of(row) < p.rows) added[row].store(p.y + std::size_t{vector_of(row)} * 8);
    }
  }
  __syncthreads();
  if (turn > 0) write_mask(tile - gridDim.y);
}

std::size_t shared_bytes(int depth) {
  return static_cast<std::size_t>(depth) * kColumns * 2 + RowRing<__half>::kBytes +
         2 * kRows * sizeof(MaskRow);
}

template <class T, bool kNormShortcut>
void launch(const BlockForward<T>& work, cudaStream_t stream) {
  const auto kernel = block_forward_kernel<T, kNormShortcut>;
  const std::size_t bytes = shared_bytes(static_cast<int>(work.depth));
  const unsigned columns = work.channels / kColumns;
  const unsigned blocks = blocks_at_once(kernel, kThreads, bytes) * multiprocessors();
  const unsigned tiles = (work.rows + kRows - 1) / kRows;
  const unsigned chunks = std::max(1U, std::min(blocks / columns, tiles));
  kernel<<<dim3(columns, chunks), kThreads, bytes, stream>>>(work);
  CHECK_LAUNCH();
}

}  // namespace

bool has_conv_normalise_add_relu(DataType type, int depth, int channels) {
  return size_of(type) == 2 && depth % kDepth == 0 && channels % kColumns == 0 &&
         runs_kernel(block_forward_kernel<__half, true>, shared_bytes(depth));
}

void conv_normalise_add_relu(const ForwardProduct& product, const NormVectors& norm,
                             const void* shortcut, const NormVectors* shortcut_norm, void* y,
                             std::uint8_t* mask, const ActivationShape& shape, DataType type,
                             cudaStream_t stream) {
  const auto channels = static_cast<unsigned>(shape.c);
  with_16_bits(type, [&]<class T>(T) {
    const BlockForward<T> work{static_cast<const T*>(product.x),
                               static_cast<const T*>(product.w),
                               static_cast<const T*>(shortcut),
                               static_cast<T*>(y),
                               mask,
                               norm,
                               shortcut_norm != nullptr ? *shortcut_norm : NormVectors{},
                               static_cast<unsigned>(shape.count() / channels),
                               static_cast<unsigned>(product.depth),
                               channels,
                               runs_backwards(shape.count() * sizeof(T))};
    const auto with = shortcut_norm != nullptr ? launch<T, true> : launch<T, false>;
    with(work, stream);
  });
}

}  // namespace shakedown::gpu
