// The gradient inside a block, where its last convolution is 1x1 of stride 1: the gradient through
// the norm after it, the convolution's data gradient, the mask of the ReLU before it and the sums
// for that ReLU's norm, fused into one kernel. dz is stored as well, for the gradient of the
// weights. For ResNet-50's shapes it needs as much shared memory as Hopper has.
#include "common/error.hpp"
#include "resnet/gpu/mma.cuh"

namespace shakedown::gpu {
namespace {

constexpr unsigned kBlockThreads = 512;
constexpr unsigned kDepth = 64;
constexpr unsigned kChunks = kDepth / 8;  // vectors of a stage's row
constexpr unsigned kStep = kBlockThreads / kChunks;

/// How a block computes tiles of kRows x kColumns, kDepth of the sum at a time. It keeps the
/// weights; two stages of dnormed and z are in flight while the dz made of a third is
/// multiplied.
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
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp_row = threadIdx.x / 32 / Tiles::kAcross * kWarpTile;
  const unsigned warp_column = threadIdx.x / 32 % Tiles::kAcross * kWarpTile;
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

  const unsigned channel = warp_column + lane % 4 * 8;
  float sums[2][8] = {};
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    WarpProduct product;
    const auto row_of = [&](int row) {
      return tile * Tiles::kRows + warp_row + lane / 4 + static_cast<unsigned>(row) * 8;
    };
    const auto inner_of = [&](int row) {
      return std::size_t{min(row_of(row), p.rows - 1)} * Tiles::kColumns + channel;
    };
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
      product.template add<T, kDepth, Tiles::kColumns>(shared_address(stage), warp_row,
                                                       shared_address(memory), depth, warp_column);
    }

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
        if (row_of(row) >= p.rows) continue;
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
      if (row_of(row) < p.rows) inner[row].store(p.dy + inner_of(row));
  }
  write_sums<2, Tiles::kColumns, Tiles::kDown>(
      sums, warp_row / kWarpTile, warp_column, reinterpret_cast<float*>(memory),
      p.partials + std::size_t{blockIdx.x} * 2 * Tiles::kColumns, Tiles::kColumns);
}

template <class T, class Tiles>
int launch(const GradientProduct& product, const void* z, const NormVectors& norm, void* dy,
           const ActivationShape& shape, float* partials, cudaStream_t stream) {
  const auto kernel = inner_gradient_kernel<T, Tiles>;
  const std::size_t bytes = Tiles::shared_bytes(product.depth);
  const auto rows = static_cast<unsigned>(shape.count() / Tiles::kColumns);
  const unsigned blocks = std::min(blocks_at_once(kernel, kBlockThreads, bytes) * multiprocessors(),
                                   (rows + Tiles::kRows - 1) / Tiles::kRows);
  ENSURE(blocks * 2 * Tiles::kColumns <= reduction_scratch(shape, DataType::float16, 2),
         "room for partial sums");
  kernel<<<blocks, kBlockThreads, bytes, stream>>>(
      {static_cast<const T*>(product.from->dnormed), static_cast<const T*>(product.from->z),
       static_cast<T*>(product.dz), product.from->norm, static_cast<const T*>(product.w),
       static_cast<const T*>(z), static_cast<T*>(dy), norm, partials, rows,
       static_cast<unsigned>(product.depth)});
  CHECK_LAUNCH();
  return static_cast<int>(blocks);
}

template <class Tiles>
bool takes(DataType type, int depth) {
  return size_of(type) == 2 && depth % kDepth == 0 &&
         runs_kernel(inner_gradient_kernel<__half, Tiles>, Tiles::shared_bytes(depth));
}

}  // namespace

bool has_normalise_conv_relu_backward(DataType type, int depth, int channels) {
  return (channels == 64 && takes<Tiling<64>>(type, depth)) ||
         (channels == 128 && takes<Tiling<128>>(type, depth));
}

int normalise_conv_relu_backward(const GradientProduct& product, const void* z,
                                 const NormVectors& norm, void* dy, const ActivationShape& shape,
                                 DataType type, float* partials, cudaStream_t stream) {
  ENSURE(product.from != nullptr, "the gradient that dz is computed from");
  return with_16_bits(type, [&]<class T>(T) {
    const auto with = shape.c == 64 ? launch<T, Tiling<64>> : launch<T, Tiling<128>>;
    return with(product, z, norm, dy, shape, partials, stream);
  });
}

}  // namespace shakedown::gpu
