// The gradient of a block's output, where the next block begins with a 1x1 convolution of stride 1:
// that convolution's data gradient, the gradient from the shortcut, the ReLU's mask and the sums
// for the norm's gradients in one kernel, so that the product never goes to memory. Tensor cores
// compute it while the tensors it meets arrive.
#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {
namespace {

// A block computes tiles of kRows x kColumns, one below the other, kDepth of the sum at a time. It
// keeps its columns of the weights, and has kStages pieces of its rows of dz on their way.
constexpr unsigned kRows = 64;
constexpr unsigned kColumns = 128;
constexpr unsigned kDepth = 64;
constexpr unsigned kStages = 4;
constexpr unsigned kPieceBytes = kRows * kDepth * 2;
constexpr unsigned kWarpColumns = 32;  // a warp computes 32 x 32
constexpr int kWarpRows = 32;
constexpr int kBlocksAtOnce = 2;  // on a multiprocessor

template <class T, bool kNormShortcut>
struct BlockGradient {
  static constexpr int kSums = kNormShortcut ? 3 : 2;
  const T* dz;  // rows x depth
  const T* w;   // depth x channels
  const T* dy;  // rows x channels, as everything below
  const std::uint8_t* mask;
  const T* z;
  const T* s;
  T* dsum;
  const float* mean_of_z;
  const float* mean_of_s;
  float* parts;  // gridDim.y x kSums x channels
  unsigned rows;
  unsigned depth;
  unsigned channels;
};

__device__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes to shared memory, or zeros.
__device__ void copy_16(unsigned to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0));
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ void load_matrices(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ void load_transposed(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

/// c += a b: 16 x 8 += 16 x 16 times 16 x 8.
#define SHAKEDOWN_MMA(type)                                        \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type       \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class T>
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __half>)
    SHAKEDOWN_MMA("f16");
  else
    SHAKEDOWN_MMA("bf16");
}
#undef SHAKEDOWN_MMA

/// Shared memory holds rows of 16-byte cells; a row's cells are exchanged so that eight rows' same
/// cell lies in different banks.
template <unsigned kCells>
__device__ unsigned cell_offset(unsigned row, unsigned cell) {
  return (row * kCells + (cell ^ (row & 7U))) * 16;
}
__device__ unsigned weight_offset(unsigned k, unsigned cell) {
  return cell_offset<kColumns / 8>(k, cell);
}
__device__ unsigned dz_offset(unsigned row, unsigned cell) {
  return cell_offset<kDepth / 8>(row, cell);
}

/// This block's columns of the weights. Of 32 channels, 8 t + 2 g + e goes to column 8 g + 2 t + e:
/// the four 8-column products g of a warp then leave in a thread (t, which gets columns 2 t and
/// 2 t + 1 of each) eight channels side by side, 16 bytes of every tensor.
template <class T>
__device__ void load_weights(const T* w, unsigned depth, unsigned channels, unsigned char* to) {
  constexpr unsigned kCells = kColumns / 8;
  for (unsigned i = threadIdx.x; i < depth * kCells; i += kThreads) {
    const unsigned k = i / kCells;
    const unsigned cell = i % kCells;
    const auto pack = Vector<unsigned, 4>::load(
        reinterpret_cast<const unsigned*>(w + std::size_t{k} * channels + cell * 8));
#pragma unroll
    for (unsigned g = 0; g < 4; ++g)
      *reinterpret_cast<unsigned*>(to + weight_offset(k, cell / 4 * 4 + g) + cell % 4 * 4) =
          pack.x[g];
  }
}

template <class T, bool kNormShortcut>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    block_gradient_kernel(const BlockGradient<T, kNormShortcut> p) {
  constexpr int kSums = BlockGradient<T, kNormShortcut>::kSums;
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* const ring = memory + p.depth * kColumns * 2;
  const unsigned weights_at = shared_address(memory);
  const unsigned ring_at = shared_address(ring);
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp_row = threadIdx.x / 32 / 4 * kWarpRows;
  const unsigned warp_column = threadIdx.x / 32 % 4 * kWarpColumns;
  const unsigned first_column = blockIdx.x * kColumns;
  const unsigned tiles = (p.rows + kRows - 1) / kRows;

  // Pieces of dz, in the order they are used in.
  unsigned next_tile = blockIdx.y;
  unsigned next_depth = 0;
  unsigned next_stage = 0;
  const auto fetch = [&] {
    if (next_tile < tiles) {
#pragma unroll
      for (unsigned i = threadIdx.x; i < kRows * kDepth / 8; i += kThreads) {
        const unsigned row = i / (kDepth / 8);
        const unsigned cell = i % (kDepth / 8);
        const unsigned from = next_tile * kRows + row;
        copy_16(ring_at + next_stage * kPieceBytes + dz_offset(row, cell),
                p.dz + std::size_t{from < p.rows ? from : 0} * p.depth + next_depth + cell * 8,
                from < p.rows);
      }
      next_depth += kDepth;
      if (next_depth == p.depth) {
        next_depth = 0;
        next_tile += gridDim.y;
      }
    }
    next_stage = (next_stage + 1) % kStages;
    asm volatile("cp.async.commit_group;");  // empty at the end: the count stays right
  };
  for (unsigned i = 0; i + 1 < kStages; ++i) fetch();
  load_weights(p.w + first_column, p.depth, p.channels, memory);

  const unsigned channel = first_column + warp_column + lane % 4 * 8;
  float sums[kSums][8] = {};
  unsigned stage = 0;
  for (unsigned tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    // A thread has four rows, eight apart, and eight channels of each. All loads at once; beyond
    // the end they read the last row.
    const auto row_of = [&](int part) {
      return tile * kRows + warp_row + lane / 4 + static_cast<unsigned>(part) * 8;
    };
    const auto exists = [&](int part) { return row_of(part) < p.rows; };
    const auto vector_of = [&](int part) {
      return min(row_of(part), p.rows - 1) * (p.channels / 8) + channel / 8;
    };
    Pack<T> dy[4];
    Pack<T> z[4];
    unsigned bits[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      dy[part] = Pack<T>::load(p.dy + std::size_t{vector_of(part)} * 8);
      z[part] = Pack<T>::load(p.z + std::size_t{vector_of(part)} * 8);
      bits[part] = exists(part) ? p.mask[vector_of(part)] : 0;
    }

    float products[2][4][4] = {};  // 16 rows each, 8 columns each, a thread's four
    for (unsigned depth = 0; depth < p.depth; depth += kDepth) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
      __syncthreads();  // the piece is here, and the one before it was used by all
      fetch();
      const unsigned piece = ring_at + stage * kPieceBytes;
#pragma unroll
      for (unsigned k = 0; k < kDepth; k += 16) {
        unsigned a[2][4];
        unsigned b[2][4];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
          load_matrices(a[i], piece + dz_offset(warp_row + i * 16 + lane % 16, k / 8 + lane / 16));
          load_transposed(b[i], weights_at + weight_offset(depth + k + lane % 16,
                                                           warp_column / 8 + i * 2 + lane / 16));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int g = 0; g < 4; ++g)
            multiply<T>(products[i][g], a[i], b[g / 2][g % 2 * 2], b[g / 2][g % 2 * 2 + 1]);
      }
      stage = (stage + 1) % kStages;
    }

    Pack<T> s[kNormShortcut ? 4 : 1];
    if constexpr (kNormShortcut)
#pragma unroll
      for (int part = 0; part < 4; ++part)
        s[part] = Pack<T>::load(p.s + std::size_t{vector_of(part)} * 8);
    float mean[8];
    float mean_of_s[8];
    load_channels(p.mean_of_z, channel / 8, mean);
    if constexpr (kNormShortcut) load_channels(p.mean_of_s, channel / 8, mean_of_s);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      // Measured on H200: the branch makes this 7 % faster, and with a third sum 15 % slower.
      if (!kNormShortcut && !exists(part)) continue;
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        const float product = products[part / 2][v / 2][part % 2 * 2 + v % 2];
        T& out = dy[part].x[v];
        out = from_float<T>(bits[part] >> v & 1U ? product + to_float(out) : 0.0F);
        const float gradient = to_float(out);
        sums[0][v] += gradient;
        sums[1][v] += gradient * (to_float(z[part].x[v]) - mean[v]);
        if constexpr (kNormShortcut)
          sums[2][v] += gradient * (to_float(s[part].x[v]) - mean_of_s[v]);
      }
      if (exists(part)) dy[part].store(p.dsum + std::size_t{vector_of(part)} * 8);
    }
  }

  // The eight lanes of a warp that have the same channels, then the warps below one another.
  __syncthreads();
  auto* const of_warps = reinterpret_cast<float*>(ring);  // kRows / kWarpRows x kSums x kColumns
#pragma unroll
  for (int i = 0; i < kSums; ++i)
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      float sum = sums[i][v];
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane < 4)
        of_warps[(warp_row / kWarpRows * kSums + i) * kColumns + warp_column + lane * 8 + v] = sum;
    }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kSums * kColumns; i += kThreads) {
    float total = 0;
    for (unsigned r = 0; r < kRows / kWarpRows; ++r) total += of_warps[r * kSums * kColumns + i];
    const unsigned sum = i / kColumns;
    p.parts[(blockIdx.y * kSums + sum) * p.channels + first_column + i % kColumns] = total;
  }
}

std::size_t shared_bytes(int depth) {
  return static_cast<std::size_t>(depth) * kColumns * 2 + std::size_t{kStages} * kPieceBytes;
}

template <class T, bool kNormShortcut>
int launch(const GradientProduct& product, const void* dy, const std::uint8_t* mask, void* dsum,
           const AddedNorm& main, const AddedNorm* shortcut, const ActivationShape& shape,
           float* parts, cudaStream_t stream) {
  const auto kernel = block_gradient_kernel<T, kNormShortcut>;
  const std::size_t bytes = shared_bytes(product.depth);
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  int at_once = 0;
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, kThreads, bytes));
  const auto channels = static_cast<unsigned>(shape.c);
  const auto rows = static_cast<unsigned>(shape.count() / channels);
  const unsigned columns = channels / kColumns;
  const unsigned blocks = static_cast<unsigned>(at_once) * multiprocessors();
  const unsigned chunks = std::max(1U, std::min(blocks / columns, (rows + kRows - 1) / kRows));
  kernel<<<dim3(columns, chunks), kThreads, bytes, stream>>>(
      {static_cast<const T*>(product.dz), static_cast<const T*>(product.w),
       static_cast<const T*>(dy), mask, static_cast<const T*>(main.z),
       kNormShortcut ? static_cast<const T*>(shortcut->z) : nullptr, static_cast<T*>(dsum),
       main.vectors.mean, kNormShortcut ? shortcut->vectors.mean : nullptr, parts, rows,
       static_cast<unsigned>(product.depth), channels});
  CHECK_LAUNCH();
  return static_cast<int>(chunks);
}

}  // namespace

bool adds_products(DataType type, int depth, int channels) {
  if (size_of(type) != 2 || depth % kDepth != 0 || channels % kColumns != 0) return false;
  return attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         shared_bytes(depth) <=
             static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

int add_product_relu_backward(const GradientProduct& product, const void* dy,
                              const std::uint8_t* mask, void* dsum, const AddedNorm& main,
                              const AddedNorm* shortcut, const ActivationShape& shape,
                              DataType type, float* parts, cudaStream_t stream) {
  const auto with = [&]<class T>(T) {
    return shortcut == nullptr
               ? launch<T, false>(product, dy, mask, dsum, main, shortcut, shape, parts, stream)
               : launch<T, true>(product, dy, mask, dsum, main, shortcut, shape, parts, stream);
  };
  if (type == DataType::float16) return with(__half{});
  ENSURE(type == DataType::bfloat16, "a product on tensor cores: of 16-bit elements");
  return with(__nv_bfloat16{});
}

}  // namespace shakedown::gpu
