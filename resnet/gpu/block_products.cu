// What is around the 1x1 convolutions of stride 1 in a block, fused with the convolution, so that
// the product never goes to memory. Tensor cores compute it by mma.sync while the tensors of the
// epilogue are loaded.
// - The end of a block, where the vectors of the norm after its last convolution are known before
//   it runs (unit_kernels.hpp): the convolution, the norm, the shortcut, the ReLU and its mask.
// - The gradient of a block's output, where the next block begins with such a convolution: its data
//   gradient, the gradient from the shortcut, the ReLU's mask and the sums for the norm's
//   gradients.
// - The gradient inside a block: the gradient through the norm after its last convolution, the
//   convolution's data gradient, the mask of the ReLU before it and the sums for that ReLU's norm.
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {
namespace {

constexpr unsigned kDepth = 64;  // of the sum at a time

/// The four rows of a thread's fragment, eight apart. All their loads are in flight at once; beyond
/// the end they read the last row.
struct FragmentRows {
  unsigned first;
  const unsigned& count;  // of the tensors: a kernel's parameter

  __device__ unsigned at(int row) const { return first + static_cast<unsigned>(row) * 8; }
  __device__ bool exists(int row) const { return at(row) < count; }
  __device__ unsigned loaded(int row) const { return min(at(row), count - 1); }
};

/// Where a thread's fragments are in the tiles of its block, which has `across` warps side by side.
struct FragmentPlace {
  unsigned lane = threadIdx.x % 32;
  unsigned row;     // its warp's
  unsigned column;  // its warp's

  __device__ explicit FragmentPlace(unsigned across)
      : row(threadIdx.x / 32 / across * kWarpTile), column(threadIdx.x / 32 % across * kWarpTile) {}
  __device__ FragmentRows rows(unsigned first, const unsigned& count) const {
    return {first + row + lane / 4, count};
  }
  __device__ unsigned channel(unsigned first) const { return first + column + lane % 4 * 8; }
};

// ---- the ends of blocks -------------------------------------------------------------------------

// A block computes tiles of kRows x kColumns, one below the other. It keeps its columns' weights,
// and a ring of kStages stages of its rows of the left factor is in flight.
constexpr unsigned kRows = 64;
constexpr unsigned kColumns = 128;
constexpr unsigned kAcross = kColumns / kWarpTile;      // warps
constexpr unsigned kSlabBytes = kColumns * kDepth * 2;  // of the weights
constexpr int kBlocksAtOnce = 2;                        // resident per SM (measured on H200)

template <class T>
using RowRing = Ring<T, kRows, kDepth, /*kStages=*/4>;

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
  const FragmentPlace place(kAcross);
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

  const unsigned channel = place.channel(first_column);
  AffineWithShortcut<8, kNormShortcut> affine;
  affine.load(p.norm, p.shortcut_norm, channel / 8);
  unsigned tile = blockIdx.y;
  for (; tile < ring.tiles; tile += gridDim.y, ++turn) {
    const FragmentRows rows = place.rows(ring.first_row(tile), p.rows);
    const auto vector_of = [&](int row) {
      return rows.loaded(row) * (p.channels / 8) + channel / 8;
    };
    Pack<T> added[4];
#pragma unroll
    for (int row = 0; row < 4; ++row)
      added[row] = Pack<T>::load(p.shortcut + std::size_t{vector_of(row)} * 8);

    WarpProduct product;
    for (unsigned depth = 0; depth < p.depth; depth += kDepth) {
      const unsigned stage = ring.next();
      if (depth == 0 && turn > 0) write_mask(tile - gridDim.y);
      product.add<T, kDepth, kColumns, Stored::by_column>(stage, place.row, weights_at, depth,
                                                          place.column);
    }

#pragma unroll
    for (int row = 0; row < 4; ++row) {
      unsigned bits = 0;
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        T& out = added[row].x[v];
        const float sum = affine.of(product.at(row, v), to_float(out), v);
        bits |= relu_passes(sum) ? 1U << v : 0U;
        out = from_float<T>(relu(sum));
      }
      mask[turn % 2][place.row + place.lane / 4 + static_cast<unsigned>(row) * 8]
          .bytes[place.column / 8 + place.lane % 4] = static_cast<std::uint8_t>(bits);
      if (rows.exists(row)) added[row].store(p.y + std::size_t{vector_of(row)} * 8);
    }
  }
  __syncthreads();
  if (turn > 0) write_mask(tile - gridDim.y);
}

template <class T>
struct BlockGradient {
  const T* dz;        // rows x depth
  const T* w;         // depth x channels
  EvenVectors<T> dy;  // rows x channels, as everything below; with kEven only its even pixels
  const std::uint8_t* mask;
  const T* z;
  const T* s;
  T* dsum;
  const float* mean_of_z;
  const float* mean_of_s;
  float* partials;  // gridDim.y x (1 + kCentred) x channels
  unsigned rows;
  unsigned depth;
  unsigned channels;
};

template <class T, int kCentred, bool kEven>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    block_gradient_kernel(const BlockGradient<T> p) {
  constexpr int kSums = 1 + kCentred;
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* const memory_of_ring = memory + p.depth * kColumns * 2;
  const unsigned weights_at = shared_address(memory);
  const FragmentPlace place(kAcross);
  const unsigned first_column = blockIdx.x * kColumns;
  RowRing<T> ring(p.dz, p.rows, p.depth, shared_address(memory_of_ring));
  ring.begin();
  load_weights<T, kColumns>(p.w + first_column, p.depth, p.channels, memory);

  const unsigned channel = place.channel(first_column);
  float sums[kSums][8] = {};
  for (unsigned tile = blockIdx.y; tile < ring.tiles; tile += gridDim.y) {
    const FragmentRows rows = place.rows(ring.first_row(tile), p.rows);
    const auto vector_of = [&](int row) {
      return rows.loaded(row) * (p.channels / 8) + channel / 8;
    };
    Pack<T> dy[4];
    Pack<T> z[kCentred > 0 ? 4 : 1];
    unsigned bits[4];
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      if constexpr (kEven)
        dy[row] = p.dy.load(rows.loaded(row), p.channels / 8, channel / 8);
      else
        dy[row] = Pack<T>::load(p.dy.data + std::size_t{vector_of(row)} * 8);
      if constexpr (kCentred > 0) z[row] = Pack<T>::load(p.z + std::size_t{vector_of(row)} * 8);
      bits[row] = rows.exists(row) ? p.mask[vector_of(row)] : 0;
    }

    WarpProduct product;
    for (unsigned depth = 0; depth < p.depth; depth += kDepth)
      product.add<T, kDepth, kColumns>(ring.next(), place.row, weights_at, depth, place.column);

    Pack<T> s[kCentred > 1 ? 4 : 1];
    if constexpr (kCentred > 1)
#pragma unroll
      for (int row = 0; row < 4; ++row)
        s[row] = Pack<T>::load(p.s + std::size_t{vector_of(row)} * 8);
    float mean[8];
    float mean_of_s[8];
    if constexpr (kCentred > 0) load_channels(p.mean_of_z, channel / 8, mean);
    if constexpr (kCentred > 1) load_channels(p.mean_of_s, channel / 8, mean_of_s);
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      // Measured on H200: the branch makes this 6 % faster, and with a third sum 20 % slower.
      if (kCentred < 2 && !rows.exists(row)) continue;
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        T& out = dy[row].x[v];
        out = from_float<T>(bits[row] >> v & 1U ? product.at(row, v) + to_float(out) : 0.0F);
        const float gradient = to_float(out);
        sums[0][v] += gradient;
        if constexpr (kCentred > 0) sums[1][v] += gradient * (to_float(z[row].x[v]) - mean[v]);
        if constexpr (kCentred > 1) sums[2][v] += gradient * (to_float(s[row].x[v]) - mean_of_s[v]);
      }
      if (rows.exists(row)) dy[row].store(p.dsum + std::size_t{vector_of(row)} * 8);
    }
  }

  write_sums<kSums, kColumns, kRows / kWarpTile>(
      sums, place.row / kWarpTile, place.column, reinterpret_cast<float*>(memory_of_ring),
      p.partials + std::size_t{blockIdx.y} * kSums * p.channels + first_column, p.channels);
}

std::size_t gradient_bytes(int depth) {
  return static_cast<std::size_t>(depth) * kColumns * 2 + RowRing<__half>::kBytes;
}
std::size_t forward_bytes(int depth) { return gradient_bytes(depth) + 2 * kRows * sizeof(MaskRow); }

bool has_end(DataType type, int depth, int channels) {
  return size_of(type) == 2 && depth % kDepth == 0 && channels % kColumns == 0;
}

/// A column of blocks for each kColumns channels, as high as blocks run at once and there are
/// tiles.
template <class Kernel>
dim3 blocks_of_end(Kernel kernel, std::size_t bytes, const ActivationShape& shape) {
  const auto channels = static_cast<unsigned>(shape.c);
  const auto rows = static_cast<unsigned>(shape.count() / channels);
  const unsigned columns = channels / kColumns;
  const unsigned blocks = blocks_at_once(kernel, kThreads, bytes) * multiprocessors();
  return {columns, std::max(1U, std::min(blocks / columns, (rows + kRows - 1) / kRows))};
}

}  // namespace

bool has_conv_normalise_add_relu(DataType type, int depth, int channels) {
  return has_end(type, depth, channels) &&
         runs_kernel(block_forward_kernel<__half, true>, forward_bytes(depth));
}

void conv_normalise_add_relu(const ForwardProduct& product, const BlockEnd& end, const Launch& on) {
  const auto channels = static_cast<unsigned>(on.shape.c);
  with_16_bits(on.type, [&]<class T>(T) {
    const auto kernel =
        end.shortcut_norm ? block_forward_kernel<T, true> : block_forward_kernel<T, false>;
    const std::size_t bytes = forward_bytes(product.depth);
    kernel<<<blocks_of_end(kernel, bytes, on.shape), kThreads, bytes, on.stream>>>(
        {as<T>(product.x), as<T>(product.w), as<T>(end.shortcut), as<T>(end.y), end.mask, end.norm,
         end.shortcut_norm.value_or(NormVectors{}),
         static_cast<unsigned>(on.shape.count() / channels), static_cast<unsigned>(product.depth),
         channels, runs_backwards(on.shape.count() * sizeof(T))});
    CHECK_LAUNCH();
  });
}

bool has_conv_add_relu_backward(DataType type, int depth, int channels) {
  return has_end(type, depth, channels) &&
         runs_kernel(block_gradient_kernel<__half, 2, false>, gradient_bytes(depth));
}

int conv_add_relu_backward(const GradientProduct& product, const Addend& dy,
                           const std::uint8_t* mask, void* dsum, const CentredTensors& centred,
                           float* partials, const Launch& on) {
  ENSURE(dy.stride == 1 || dy.stride == 2, "a second addend: of stride 1 or 2");
  const auto channels = static_cast<unsigned>(on.shape.c);
  const auto run = [&]<class T, int kCentred>() {
    const auto kernel = dy.stride == 1 ? block_gradient_kernel<T, kCentred, false>
                                       : block_gradient_kernel<T, kCentred, true>;
    const std::size_t bytes = gradient_bytes(product.depth);
    const dim3 blocks = blocks_of_end(kernel, bytes, on.shape);
    ENSURE(blocks.y * (1 + kCentred) * channels <=
               reduction_scratch(on.shape, DataType::float16, 1 + kCentred),
           "room for partial sums");
    kernel<<<blocks, kThreads, bytes, on.stream>>>(
        {as<T>(product.dz),
         as<T>(product.w),
         {as<T>(dy.data), EvenPixels(on.shape)},
         mask,
         as<T>(centred.tensors[0].z),
         as<T>(centred.tensors[1].z),
         as<T>(dsum),
         centred.tensors[0].mean,
         centred.tensors[1].mean,
         partials,
         static_cast<unsigned>(on.shape.count() / channels),
         static_cast<unsigned>(product.depth),
         channels});
    CHECK_LAUNCH();
    return static_cast<int>(blocks.y);
  };
  return with_16_bits(on.type, [&]<class T>(T) {
    return with_constant<0, 1, 2>(
        centred.count, [&]<int kCentred>() { return run.template operator()<T, kCentred>(); });
  });
}

// ---- the gradient inside a block ----------------------------------------------------------------

namespace {

constexpr unsigned kBlockThreads = 512;
constexpr unsigned kChunks = kDepth / 8;  // vectors of a stage's row
constexpr unsigned kStep = kBlockThreads / kChunks;

/// How a block computes tiles of kRows x kColumns, kDepth of the sum at a time. It keeps the
/// weights; two stages of dnormed and z are in flight while the dz made of a third is
/// multiplied. For ResNet-50's shapes this needs as much shared memory as Hopper has. dz is stored
/// as well, for the gradient of the weights.
template <unsigned columns>
struct Tiling {
  static constexpr unsigned kColumns = columns;
  static constexpr unsigned kAcross = kColumns / kWarpTile;  // warps
  static constexpr unsigned kDown = kBlockThreads / 32 / kAcross;
  static constexpr unsigned kRows = kDown * kWarpTile;
  static constexpr unsigned kStageBytes = kRows * kDepth * 2;
  static constexpr unsigned kVectors = kRows / kStep;  // of a stage, a thread's

  static std::size_t shared_bytes(int depth) {
    return static_cast<std::size_t>(depth) * (kColumns * 2 + 3 * sizeof(float)) + 5 * kStageBytes;
  }
};

template <class T>
struct InnerGradient {
  const T* dnormed;  // rows x depth, as z and dz
  const T* z;
  T* dz;
  NormVectors norm;
  const T* w;        // depth x columns
  const T* inner_z;  // rows x columns, as dy
  T* dy;
  NormVectors inner_norm;
  float* partials;  // gridDim.x x 2 x columns
  unsigned rows;
  unsigned depth;
};

template <class T, class Tiles>
__global__ void __launch_bounds__(kBlockThreads, 1)
    inner_gradient_kernel(const InnerGradient<T> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* const dz_stages = memory + p.depth * Tiles::kColumns * 2;  // three, from dnormed
  unsigned char* const z_stages = dz_stages + 3 * Tiles::kStageBytes;       // two, of z
  auto* const coefficients = reinterpret_cast<float*>(z_stages + 2 * Tiles::kStageBytes);
  const FragmentPlace place(Tiles::kAcross);
  const unsigned tiles = (p.rows + Tiles::kRows - 1) / Tiles::kRows;

  // A thread's vectors of a stage, kStep rows apart; it copies them and makes dz of them. Beyond
  // the end they are the last row's.
  const unsigned chunk = threadIdx.x % kChunks;
  const unsigned first_row = threadIdx.x / kChunks;
  const auto vector_of = [&](unsigned tile, unsigned depth, unsigned j) {
    const unsigned row = min(tile * Tiles::kRows + first_row + j * kStep, p.rows - 1);
    return std::size_t{row * (p.depth / 8) + depth / 8 + chunk} * 8;
  };
  const auto offset_of = [&](unsigned j) {
    return swizzled_offset<kChunks>(first_row + j * kStep, chunk);
  };
  unsigned next_tile = blockIdx.x;
  unsigned next_depth = 0;
  unsigned next = 0;  // stage
  const auto fetch = [&] {
    if (next_tile < tiles) {
      const unsigned to = shared_address(dz_stages + next % 3 * Tiles::kStageBytes);
      const unsigned z_to = shared_address(z_stages + next % 2 * Tiles::kStageBytes);
#pragma unroll
      for (unsigned j = 0; j < Tiles::kVectors; ++j) {
        copy_16(to + offset_of(j), p.dnormed + vector_of(next_tile, next_depth, j), true);
        copy_16(z_to + offset_of(j), p.z + vector_of(next_tile, next_depth, j), true);
      }
      next_depth += kDepth;
      if (next_depth == p.depth) {
        next_depth = 0;
        next_tile += gridDim.x;
      }
    }
    ++next;
    commit_copies();  // empty at the end: the count stays right
  };
  fetch();
  fetch();
  load_weights<T, Tiles::kColumns>(p.w, p.depth, Tiles::kColumns, memory);
  for (unsigned i = threadIdx.x; i < p.depth; i += kBlockThreads) {
    coefficients[i] = p.norm.grad_a[i];
    coefficients[p.depth + i] = p.norm.grad_b[i];
    coefficients[2 * p.depth + i] = p.norm.grad_c[i];
  }
  __syncthreads();

  const unsigned channel = place.channel(0);
  float sums[2][8] = {};
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    WarpProduct product;
    for (unsigned depth = 0; depth < p.depth; depth += kDepth) {
      wait_for_copies<1>();  // what this thread copied is here
      unsigned char* const stage = dz_stages + (next + 1) % 3 * Tiles::kStageBytes;
      const unsigned char* const z_stage = z_stages + next % 2 * Tiles::kStageBytes;
      float a[8];
      float b[8];
      float c[8];
      load_channels(coefficients, depth / 8 + chunk, a);
      load_channels(coefficients + p.depth, depth / 8 + chunk, b);
      load_channels(coefficients + 2 * p.depth, depth / 8 + chunk, c);
#pragma unroll 1
      for (unsigned j = 0; j < Tiles::kVectors; ++j) {
        auto vector = Pack<T>::load(reinterpret_cast<const T*>(stage + offset_of(j)));
        const auto z = Pack<T>::load(reinterpret_cast<const T*>(z_stage + offset_of(j)));
#pragma unroll
        for (int v = 0; v < 8; ++v)
          vector.x[v] =
              from_float<T>(a[v] * to_float(vector.x[v]) + b[v] * to_float(z.x[v]) + c[v]);
        vector.store(reinterpret_cast<T*>(stage + offset_of(j)));
        if (tile * Tiles::kRows + first_row + j * kStep < p.rows)
          vector.store(p.dz + vector_of(tile, depth, j));
      }
      __syncthreads();  // the stage is complete, and no warp uses the one before
      fetch();
      product.template add<T, kDepth, Tiles::kColumns>(shared_address(stage), place.row,
                                                       shared_address(memory), depth, place.column);
    }

    const FragmentRows rows = place.rows(tile * Tiles::kRows, p.rows);
    const auto inner_of = [&](int row) {
      return std::size_t{rows.loaded(row)} * Tiles::kColumns + channel;
    };
    Pack<T> inner[4];  // loaded here: registers are short while the product is computed
#pragma unroll
    for (int row = 0; row < 4; ++row) inner[row] = Pack<T>::load(p.inner_z + inner_of(row));
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      const auto scale = Vector<float, 4>::load(p.inner_norm.scale + channel + half);
      const auto shift = Vector<float, 4>::load(p.inner_norm.shift + channel + half);
      const auto mean = Vector<float, 4>::load(p.inner_norm.mean + channel + half);
#pragma unroll
      for (int row = 0; row < 4; ++row) {
        if (!rows.exists(row)) continue;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          T& out = inner[row].x[half + v];
          const float value = to_float(out);
          out = from_float<T>(
              relu_passes(value * scale.x[v] + shift.x[v]) ? product.at(row, half + v) : 0.0F);
          const float gradient = to_float(out);
          sums[0][half + v] += gradient;
          sums[1][half + v] += gradient * (value - mean.x[v]);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 4; ++row)
      if (rows.exists(row)) inner[row].store(p.dy + inner_of(row));
  }
  write_sums<2, Tiles::kColumns, Tiles::kDown>(
      sums, place.row / kWarpTile, place.column, reinterpret_cast<float*>(memory),
      p.partials + std::size_t{blockIdx.x} * 2 * Tiles::kColumns, Tiles::kColumns);
}

template <class Tiles>
bool has_inner(DataType type, int depth) {
  return size_of(type) == 2 && depth % kDepth == 0 &&
         runs_kernel(inner_gradient_kernel<__half, Tiles>, Tiles::shared_bytes(depth));
}

}  // namespace

bool has_normalise_conv_relu_backward(DataType type, int depth, int channels) {
  return (channels == 64 && has_inner<Tiling<64>>(type, depth)) ||
         (channels == 128 && has_inner<Tiling<128>>(type, depth));
}

int normalise_conv_relu_backward(const GradientProduct& product, const void* z,
                                 const NormVectors& norm, void* dy, float* partials,
                                 const Launch& on) {
  ENSURE(product.from != nullptr, "the gradient that dz is computed from");
  const auto run = [&]<class T, class Tiles>() {
    const auto kernel = inner_gradient_kernel<T, Tiles>;
    const std::size_t bytes = Tiles::shared_bytes(product.depth);
    const auto rows = static_cast<unsigned>(on.shape.count() / Tiles::kColumns);
    const unsigned blocks =
        std::min(blocks_at_once(kernel, kBlockThreads, bytes) * multiprocessors(),
                 (rows + Tiles::kRows - 1) / Tiles::kRows);
    ENSURE(blocks * 2 * Tiles::kColumns <= reduction_scratch(on.shape, DataType::float16, 2),
           "room for partial sums");
    kernel<<<blocks, kBlockThreads, bytes, on.stream>>>(
        {as<T>(product.from->dnormed), as<T>(product.from->z), as<T>(product.dz),
         product.from->norm, as<T>(product.w), as<T>(z), as<T>(dy), norm, partials, rows,
         static_cast<unsigned>(product.depth)});
    CHECK_LAUNCH();
    return static_cast<int>(blocks);
  };
  return with_16_bits(on.type, [&]<class T>(T) {
    return with_constant<64, 128>(on.shape.c, [&]<int kChannels>() {
      return run.template operator()<T, Tiling<kChannels>>();
    });
  });
}

}  // namespace shakedown::gpu
