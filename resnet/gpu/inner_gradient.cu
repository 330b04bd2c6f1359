// The gradient inside a block, where its last convolution is 1x1 of stride 1: the gradient through
// the norm behind it, the convolution's data gradient, the mask of the ReLU before it and the sums
// for that one's norm in one kernel. What is multiplied is made on the way, and left in memory for
// the gradient of the weights. For ResNet-50's shapes it wants the shared memory of Hopper.
#include "resnet/gpu/tensor_cores.cuh"

namespace shakedown::gpu {
namespace {

constexpr unsigned kBlockThreads = 512;
constexpr unsigned kDepth = 64;
constexpr unsigned kCells = kDepth / 8;  // vectors of a piece's row
constexpr unsigned kStep = kBlockThreads / kCells;

/// How a block computes tiles of kRows x kColumns, kDepth of the sum at a time. It keeps the
/// weights; two pieces of each tensor that a third is made of are on their way while that is
/// multiplied.
template <unsigned columns>
struct Tiling {
  static constexpr unsigned kColumns = columns;
  static constexpr unsigned kAcross = kColumns / kWarpTile;  // warps
  static constexpr unsigned kDown = kBlockThreads / 32 / kAcross;
  static constexpr unsigned kRows = kDown * kWarpTile;
  static constexpr unsigned kPieceBytes = kRows * kDepth * 2;
  static constexpr unsigned kVectors = kRows / kStep;  // of a piece, a thread's

  static std::size_t shared_bytes(int depth) {
    return static_cast<std::size_t>(depth) * (kColumns * 2 + 3 * sizeof(float)) + 5 * kPieceBytes;
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
  float* parts;  // gridDim.x x 2 x columns
  unsigned rows;
  unsigned depth;
};

template <class T, class Tiles>
__global__ void __launch_bounds__(kBlockThreads, 1)
    inner_gradient_kernel(const InnerGradient<T> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* const made = memory + p.depth * Tiles::kColumns * 2;  // three, from dnormed
  unsigned char* const beside = made + 3 * Tiles::kPieceBytes;         // two, of z
  auto* const coefficients = reinterpret_cast<float*>(beside + 2 * Tiles::kPieceBytes);
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp_row = threadIdx.x / 32 / Tiles::kAcross * kWarpTile;
  const unsigned warp_column = threadIdx.x / 32 % Tiles::kAcross * kWarpTile;
  const unsigned tiles = (p.rows + Tiles::kRows - 1) / Tiles::kRows;

  // A thread's vectors of a piece, kStep rows apart; it copies them and makes dz of them. Beyond
  // the end they are the last row's.
  const unsigned cell = threadIdx.x % kCells;
  const unsigned first_row = threadIdx.x / kCells;
  const auto vector_of = [&](unsigned tile, unsigned depth, unsigned j) {
    const unsigned row = min(tile * Tiles::kRows + first_row + j * kStep, p.rows - 1);
    return std::size_t{row * (p.depth / 8) + depth / 8 + cell} * 8;
  };
  const auto place_of = [&](unsigned j) {
    return cell_offset<kCells>(first_row + j * kStep, cell);
  };
  unsigned next_tile = blockIdx.x;
  unsigned next_depth = 0;
  unsigned next = 0;  // piece
  const auto fetch = [&] {
    if (next_tile < tiles) {
      const unsigned to = shared_address(made + next % 3 * Tiles::kPieceBytes);
      const unsigned z_to = shared_address(beside + next % 2 * Tiles::kPieceBytes);
#pragma unroll
      for (unsigned j = 0; j < Tiles::kVectors; ++j) {
        copy_16(to + place_of(j), p.dnormed + vector_of(next_tile, next_depth, j), true);
        copy_16(z_to + place_of(j), p.z + vector_of(next_tile, next_depth, j), true);
      }
      next_depth += kDepth;
      if (next_depth == p.depth) {
        next_depth = 0;
        next_tile += gridDim.x;
      }
    }
    ++next;
    end_group_of_copies();  // empty at the end: the count stays right
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
    const auto row_of = [&](int part) {
      return tile * Tiles::kRows + warp_row + lane / 4 + static_cast<unsigned>(part) * 8;
    };
    const auto inner_of = [&](int part) {
      return std::size_t{min(row_of(part), p.rows - 1)} * Tiles::kColumns + channel;
    };
    for (unsigned depth = 0; depth < p.depth; depth += kDepth) {
      wait_for_copies<1>();  // what this thread copied is here
      unsigned char* const piece = made + (next + 1) % 3 * Tiles::kPieceBytes;
      const unsigned char* const z_piece = beside + next % 2 * Tiles::kPieceBytes;
      float a[8];
      float b[8];
      float c[8];
      load_channels(coefficients, depth / 8 + cell, a);
      load_channels(coefficients + p.depth, depth / 8 + cell, b);
      load_channels(coefficients + 2 * p.depth, depth / 8 + cell, c);
#pragma unroll 1
      for (unsigned j = 0; j < Tiles::kVectors; ++j) {
        auto vector = Pack<T>::load(reinterpret_cast<const T*>(piece + place_of(j)));
        const auto z = Pack<T>::load(reinterpret_cast<const T*>(z_piece + place_of(j)));
#pragma unroll
        for (int v = 0; v < 8; ++v)
          vector.x[v] =
              from_float<T>(a[v] * to_float(vector.x[v]) + b[v] * to_float(z.x[v]) + c[v]);
        vector.store(reinterpret_cast<T*>(piece + place_of(j)));
        if (tile * Tiles::kRows + first_row + j * kStep < p.rows)
          vector.store(p.dz + vector_of(tile, depth, j));
      }
      __syncthreads();  // the piece is whole, and nobody uses the one before any more
      fetch();
      product.template add<T, kDepth, Tiles::kColumns>(shared_address(piece), warp_row,
                                                       shared_address(memory), depth, warp_column);
    }

    Pack<T> inner[4];  // loaded here: registers are short while the product is computed
#pragma unroll
    for (int part = 0; part < 4; ++part) inner[part] = Pack<T>::load(p.inner_z + inner_of(part));
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      const auto scale = Vector<float, 4>::load(p.inner_norm.scale + channel + half);
      const auto shift = Vector<float, 4>::load(p.inner_norm.shift + channel + half);
      const auto mean = Vector<float, 4>::load(p.inner_norm.mean + channel + half);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        if (row_of(part) >= p.rows) continue;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          T& out = inner[part].x[half + v];
          const float value = to_float(out);
          out = from_float<T>(
              relu_passes(value * scale.x[v] + shift.x[v]) ? product.at(part, half + v) : 0.0F);
          const float gradient = to_float(out);
          sums[0][half + v] += gradient;
          sums[1][half + v] += gradient * (value - mean.x[v]);
        }
      }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part)
      if (row_of(part) < p.rows) inner[part].store(p.dy + inner_of(part));
  }
  write_sums<2, Tiles::kColumns, Tiles::kDown>(
      sums, warp_row / kWarpTile, warp_column, reinterpret_cast<float*>(memory),
      p.parts + std::size_t{blockIdx.x} * 2 * Tiles::kColumns, Tiles::kColumns);
}

template <class T, class Tiles>
int launch(const GradientProduct& product, const void* z, const NormVectors& norm, void* dy,
           const ActivationShape& shape, float* parts, cudaStream_t stream) {
  const auto kernel = inner_gradient_kernel<T, Tiles>;
  const std::size_t bytes = Tiles::shared_bytes(product.depth);
  const auto rows = static_cast<unsigned>(shape.count() / Tiles::kColumns);
  const unsigned blocks = std::min(blocks_at_once(kernel, kBlockThreads, bytes) * multiprocessors(),
                                   (rows + Tiles::kRows - 1) / Tiles::kRows);
  ENSURE(blocks * 2 * Tiles::kColumns <= reduction_scratch(shape, DataType::float16, 2),
         "room for the parts of sums");
  kernel<<<blocks, kBlockThreads, bytes, stream>>>(
      {static_cast<const T*>(product.from->dnormed), static_cast<const T*>(product.from->z),
       static_cast<T*>(product.dz), product.from->norm, static_cast<const T*>(product.w),
       static_cast<const T*>(z), static_cast<T*>(dy), norm, parts, rows,
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
                                 DataType type, float* parts, cudaStream_t stream) {
  ENSURE(product.from != nullptr, "what dz is made of");
  return with_16_bits(type, [&]<class T>(T) {
    const auto with = shape.c == 64 ? launch<T, Tiling<64>> : launch<T, Tiling<128>>;
    return with(product, z, norm, dy, shape, parts, stream);
  });
}

}  // namespace shakedown::gpu
