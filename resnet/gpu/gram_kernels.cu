// The small matrices of a norm through the Gram matrix (unit_kernels.hpp). They do not shrink with
// the batch, and their time is latency: many short blocks, each with all its loads in flight.

#include "common/ensure.hpp"
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/passes.cuh"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {
namespace {

/// Row k of D from its parts, the norm's gradient and coefficients of channel k, the largest of
/// filter k.
struct Coefficients {
  const float* d_parts;
  unsigned parts;
  const float* sum_of_g;
  NormParameters parameters;
  NormVectors norm;
  float share;
  GramMatrices m;
};

template <class T, unsigned kChannels>
__global__ void __launch_bounds__(kThreads) coefficients_kernel(const Coefficients p) {
  constexpr unsigned kRowWarps = kChannels / 32;
  __shared__ double dots[kRowWarps];
  __shared__ float largest[kRowWarps];
  const unsigned k = blockIdx.x;
  const unsigned c = threadIdx.x;
  // what the end needs is loaded along with the parts
  const auto of_norm = NormOfChannel::load(static_cast<int>(k), p.parameters, p.norm);
  const auto sum_of_g = static_cast<double>(p.sum_of_g[k]);
  const float w = c < kChannels ? to_float(as<T>(p.m.w)[k * kChannels + c]) : 0.0F;
  const double sum = sum_of_parts<kChannels / 4>(p.d_parts + k * kChannels, p.parts,
                                                 std::size_t{4 * kChannels} * kChannels);
  if (c >= kChannels) return;
  p.m.d[k * kChannels + c] = static_cast<float>(sum);
  const double dot = sum_across<1>(sum * static_cast<double>(w));
  float most = fabsf(w);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, step));
  if (c % 32 == 0) {
    dots[c / 32] = dot;
    largest[c / 32] = most;
  }
  __syncthreads();
  if (c != 0) return;
  double product = 0;
#pragma unroll
  for (unsigned i = 0; i < kRowWarps; ++i) {
    product += dots[i];
    most = fmaxf(most, largest[i]);
  }
  p.m.largest[k] = most;
  finish_norm_gradient<T>(static_cast<int>(k), sum_of_g,
                          product - static_cast<double>(of_norm.mean) * sum_of_g, p.share, of_norm,
                          p.parameters, p.norm);
}

/// The power of two that brings `bound` to 16,384 or more, below 32,768; 1 where there is none.
/// Far above what float16's smallest steps round, as `bound` is, and below its largest.
__device__ int exponent_for(float bound) {
  if (bound == 0 || !isfinite(bound)) return 0;
  int exponent = 0;
  frexpf(bound, &exponent);
  return max(-100, min(100, 15 - exponent));
}

// A block of input_matrix_kernel: kRowsOfH x kColumnsOfH of H. Four threads share a filter, each
// with all of these rows and four of the columns; a warp has eight filters, a block 64 at once.
constexpr unsigned kRowsOfH = 8;
constexpr unsigned kColumnsOfH = 16;
constexpr unsigned kFiltersAtOnce = kThreads / 4;

/// What a block of it reads of kFilters filters, in shared memory. All of it is loaded at once, as
/// its latency is what the kernel takes.
template <class T, unsigned kChannels, unsigned kFilters>
struct StagedFilters {
  Vector<T, kRowsOfH> rows[kFilters];
  Vector<T, kColumnsOfH / 2> columns[kFilters][2];
  Vector<float, 2> coefficients[kFilters];  // b, c

  /// Of the filters from `first` on. Returns the thread's share of a bound of |H|: the sum of |b|
  /// times the filter's largest squared.
  __device__ float load(const GramMatrices& m, const NormVectors& norm, unsigned first,
                        unsigned row, unsigned column) {
    constexpr unsigned kOfThread = kFilters / kThreads;
    const auto* w = as<T>(m.w) + first * kChannels;
    Vector<T, kRowsOfH> of_rows[kOfThread];
    Vector<T, kColumnsOfH / 2> of_columns[2 * kOfThread];
    float b[kOfThread], c[kOfThread], largest[kOfThread];
#pragma unroll
    for (unsigned i = 0; i < kOfThread; ++i) {
      const unsigned k = i * kThreads + threadIdx.x;
      of_rows[i] = Vector<T, kRowsOfH>::load(w + k * kChannels + row);
      b[i] = norm.grad_b[first + k];
      c[i] = norm.grad_c[first + k];
      largest[i] = m.largest[first + k];
    }
#pragma unroll
    for (unsigned i = 0; i < 2 * kOfThread; ++i)
      of_columns[i] = Vector<T, kColumnsOfH / 2>::load(
          w + (i * kThreads + threadIdx.x) / 2 * kChannels + column + threadIdx.x % 2 * 8);
    float bound = 0;
#pragma unroll
    for (unsigned i = 0; i < kOfThread; ++i) {
      const unsigned k = i * kThreads + threadIdx.x;
      rows[k] = of_rows[i];
      coefficients[k] = {b[i], c[i]};
      bound += fabsf(b[i]) * largest[i] * largest[i];
    }
#pragma unroll
    for (unsigned i = 0; i < 2 * kOfThread; ++i)
      columns[(i * kThreads + threadIdx.x) / 2][threadIdx.x % 2] = of_columns[i];
    return bound;
  }
};

/// A thread's sums over its filters, then a warp's: of H, of w'c.
struct SumsOfH {
  float h[kRowsOfH * 4] = {};
  float bias[4] = {};

  template <class T>
  __device__ void add(Vector<T, kRowsOfH> rows, Vector<T, 4> columns,
                      Vector<float, 2> coefficients) {
#pragma unroll
    for (unsigned v = 0; v < 4; ++v) {
      const float column = to_float(columns.x[v]);
      const float weighted = coefficients.x[0] * column;
      bias[v] += coefficients.x[1] * column;
#pragma unroll
      for (unsigned r = 0; r < kRowsOfH; ++r) h[r * 4 + v] += to_float(rows.x[r]) * weighted;
    }
  }
  /// Lane l is left with four columns of row l / 4 in h[0] to h[3].
  __device__ void add_across_warp() {
    add_across<16, 4, kRowsOfH * 4>(h);
#pragma unroll
    for (float& sum : bias) sum = sum_across<4>(sum);
  }
};

/// H = w' (b w), scaled, and a w, where the product reads them; w'c by the first row of blocks.
template <class T, unsigned kChannels>
__global__ void __launch_bounds__(kThreads)
    input_matrix_kernel(const GramMatrices m, const NormVectors norm) {
  constexpr unsigned kFilters = 4 * kChannels;
  constexpr unsigned kStaged = kFilters < 512 ? kFilters : 512;
  constexpr bool kInTwo = gram_in_two(kChannels);
  constexpr unsigned kDepth = kChannels + (kInTwo ? 0 : kFilters);  // of `placed`
  constexpr unsigned kSums = (kRowsOfH + 1) * kColumnsOfH;
  __shared__ StagedFilters<T, kChannels, kStaged> staged;
  __shared__ Vector<float, 4> shared[kWarps][kSums / 4];
  __shared__ float bounds[kWarps];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const unsigned row = blockIdx.y * kRowsOfH;
  const unsigned column = blockIdx.x * kColumnsOfH;
  // of a w the block places its rows of 64 filters, two rows a thread
  const unsigned of_pair = blockIdx.x * kFiltersAtOnce + threadIdx.x % kFiltersAtOnce;
  const unsigned pair = row + threadIdx.x / kFiltersAtOnce * 2;
  const float a = norm.grad_a[of_pair];
  const auto w = Vector<T, 2>::load(as<T>(m.w) + of_pair * kChannels + pair);
  float bound = 0;
  SumsOfH sums;
  for (unsigned first = 0; first < kFilters; first += kStaged) {
    if (first > 0) __syncthreads();
    bound += staged.load(m, norm, first, row, column);
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < kStaged / kFiltersAtOnce; ++i) {
      const unsigned k = i * kFiltersAtOnce + threadIdx.x / 4;
      sums.add<T>(staged.rows[k],
                  Vector<T, 4>::load(staged.columns[k][lane % 4 / 2].x + lane % 2 * 4),
                  staged.coefficients[k]);
    }
  }
  sums.add_across_warp();
  bound = sum_across<1>(bound);
  if (lane == 0) bounds[warp] = bound;
  shared[warp][lane] = {sums.h[0], sums.h[1], sums.h[2], sums.h[3]};
  if (lane < 4) shared[warp][32 + lane] = {sums.bias[0], sums.bias[1], sums.bias[2], sums.bias[3]};
  auto* placed = as<T>(m.placed);
  Vector<T, 2> scaled;
#pragma unroll
  for (unsigned i = 0; i < 2; ++i) scaled.x[i] = from_float<T>(a * to_float(w.x[i]));
  if constexpr (kInTwo)
    scaled.store(as<T>(m.scaled) + of_pair * kChannels + pair);
  else
#pragma unroll
    for (unsigned i = 0; i < 2; ++i)
      placed[placed_column(pair + i) * kDepth + kChannels + of_pair] = scaled.x[i];
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  float total = 0;
  bound = 0;
#pragma unroll
  for (unsigned i = 0; i < kWarps; ++i) {
    total += shared[i][threadIdx.x / 4].x[threadIdx.x % 4];
    bound += bounds[i];
  }
  const int exponent = exponent_for(bound);
  const unsigned r = threadIdx.x / kColumnsOfH;
  const unsigned c = column + threadIdx.x % kColumnsOfH;
  // H is symmetric: its row is its column
  if (r < kRowsOfH)
    placed[placed_column(row + r) * kDepth + c] = from_float<T>(ldexpf(total, exponent));
  else if (row == 0)
    m.bias[c] = total;
  if (row + column + threadIdx.x == 0) *m.unscale = ldexpf(1, -exponent);
}

// A block of weight_gradient_kernel: kRowsOfDw filters x kColumnsOfDw channels of dw. A thread adds
// up eight filters x four channels over a slice of w G's depth.
constexpr unsigned kRowsOfDw = 16;
constexpr unsigned kColumnsOfDw = 32;
constexpr unsigned kSlices = 16;

template <class T>
struct WeightGradient {
  GramMatrices m;
  NormVectors norm;
  const float* gram;
  const float* sum_of_y;
  T* dw;
};

/// The block's rows of w and columns of G, in shared memory.
template <class T, unsigned kChannels>
struct StagedFactors {
  static constexpr unsigned kSlice = kChannels / kSlices;
  Vector<T, kSlice> w[kRowsOfDw][kSlices];
  Vector<float, 4> gram[kChannels][kColumnsOfDw / 4];

  __device__ void load(const T* of_w, const float* of_gram) {
    constexpr unsigned kAcross = kColumnsOfDw / 4;
    constexpr unsigned kRowsAtOnce = kThreads / kAcross;
    const unsigned row = threadIdx.x / kSlices;
    const unsigned slice = threadIdx.x % kSlices;
    const unsigned across = threadIdx.x % kAcross;
    w[row][slice] = Vector<T, kSlice>::load(of_w + row * kChannels + slice * kSlice);
    Vector<float, 4> loaded[kChannels / kRowsAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kChannels / kRowsAtOnce; ++i)
      loaded[i] = Vector<float, 4>::load(
          of_gram + (i * kRowsAtOnce + threadIdx.x / kAcross) * kChannels + across * 4);
#pragma unroll
    for (unsigned i = 0; i < kChannels / kRowsAtOnce; ++i)
      gram[i * kRowsAtOnce + threadIdx.x / kAcross][across] = loaded[i];
  }
  /// Adds to a thread's sums: eight rows, four columns.
  __device__ void multiply(unsigned row, unsigned across, unsigned slice, float (&sums)[32]) const {
    Vector<T, kSlice> rows[8];
#pragma unroll
    for (unsigned r = 0; r < 8; ++r) rows[r] = w[row + r][slice];
#pragma unroll
    for (unsigned j = 0; j < kSlice; ++j) {
      const auto columns = gram[slice * kSlice + j][across];
#pragma unroll
      for (unsigned r = 0; r < 8; ++r)
#pragma unroll
        for (unsigned v = 0; v < 4; ++v) sums[r * 4 + v] += to_float(rows[r].x[j]) * columns.x[v];
    }
  }
};

/// dw = a D + b w G + c s'.
template <class T, unsigned kChannels>
__global__ void __launch_bounds__(kThreads) weight_gradient_kernel(const WeightGradient<T> p) {
  static_assert(kThreads == kRowsOfDw * kSlices && kThreads * 2 == kRowsOfDw * kColumnsOfDw);
  __shared__ StagedFactors<T, kChannels> staged;
  __shared__ Vector<float, 4> shared[4][kRowsOfDw][kColumnsOfDw / 4];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const unsigned row = blockIdx.y * kRowsOfDw;
  const unsigned column = blockIdx.x * kColumnsOfDw;
  // what becomes two elements of dw in the end is loaded along with what is multiplied
  const unsigned r = threadIdx.x / 16;
  const unsigned k = row + r;
  const unsigned c = column + threadIdx.x % 16 * 2;
  const auto d = Vector<float, 2>::load(p.m.d + k * kChannels + c);
  const auto s = Vector<float, 2>::load(p.sum_of_y + c);
  const float of_d = p.norm.grad_a[k];
  const float of_gram = p.norm.grad_b[k];
  const float of_s = p.norm.grad_c[k];
  staged.load(as<T>(p.m.w) + row * kChannels, p.gram + column);
  __syncthreads();

  const unsigned rows = warp / 4 * 8;  // of the block's: the first of the thread
  float sums[32] = {};
  staged.multiply(rows, lane % 8, warp % 4 * 4 + lane / 8, sums);
  add_across<16, 8, 32>(sums);  // two of the eight rows are left
#pragma unroll
  for (unsigned i = 0; i < 2; ++i)
    shared[warp % 4][rows + lane / 8 * 2 + i][lane % 8] = {sums[i * 4], sums[i * 4 + 1],
                                                           sums[i * 4 + 2], sums[i * 4 + 3]};
  __syncthreads();
  Vector<T, 2> out;
#pragma unroll
  for (unsigned v = 0; v < 2; ++v) {
    float total = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      total += shared[i][r][threadIdx.x % 16 / 2].x[threadIdx.x % 2 * 2 + v];
    out.x[v] = from_float<T>(of_d * d.x[v] + of_gram * total + of_s * s.x[v]);
  }
  out.store(p.dw + k * kChannels + c);
}

/// Calls body.operator()<T, channels>() with the 16-bit type and the channels of y.
template <class Body>
void with_matrices(const GramMatrices& m, DataType type, Body&& body) {
  ENSURE(m.filters == 4 * m.channels, "filters of a norm through the Gram matrix");
  with_16_bits(type, [&]<class T>(T) {
    with_constant<64, 128, 256>(m.channels,
                                [&]<int kChannels>() { body.template operator()<T, kChannels>(); });
  });
}

}  // namespace

void gram_coefficients(const float* d_parts, int parts, const float* sum_of_g,
                       const NormParameters& parameters, const NormVectors& norm, float share,
                       const GramMatrices& matrices, DataType type, cudaStream_t stream) {
  with_matrices(matrices, type, [&]<class T, unsigned kChannels>() {
    coefficients_kernel<T, kChannels><<<4 * kChannels, kThreads, 0, stream>>>(
        {d_parts, static_cast<unsigned>(parts), sum_of_g, parameters, norm, share, matrices});
    CHECK_LAUNCH();
    input_matrix_kernel<T, kChannels>
        <<<dim3(kChannels / kColumnsOfH, kChannels / kRowsOfH), kThreads, 0, stream>>>(matrices,
                                                                                       norm);
    CHECK_LAUNCH();
  });
}

void gram_weight_gradient(const GramMatrices& matrices, const NormVectors& norm, const float* gram,
                          const float* sum_of_y, void* dw, DataType type, cudaStream_t stream) {
  with_matrices(matrices, type, [&]<class T, unsigned kChannels>() {
    weight_gradient_kernel<T, kChannels>
        <<<dim3(kChannels / kColumnsOfDw, 4 * kChannels / kRowsOfDw), kThreads, 0, stream>>>(
            {matrices, norm, gram, sum_of_y, as<T>(dw)});
    CHECK_LAUNCH();
  });
}

// The sums that a norm through the Gram matrix takes (unit_kernels.hpp): of a convolution's input,
// of parts.

namespace {

/// y = relu(z * scale + shift), and sums of y as it is stored.
template <class T>
struct NormaliseAndSum {
  static constexpr int kSums = 1;
  static constexpr unsigned kRows = 4;
  static constexpr int V = vector_width<T>;
  using Loaded = Pack<T>;
  const T* z;
  T* y;
  NormVectors norm;
  Affine<V> affine = {};

  __device__ void begin(unsigned group) { affine.load(norm, group); }
  __device__ Loaded load(std::size_t i) const { return Pack<T>::load(z + i * V); }
  __device__ void add(std::size_t i, Loaded in, float (&sums)[kSums][V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      in.x[v] = from_float<T>(relu(affine.of(to_float(in.x[v]), v)));
      sums[0][v] += to_float(in.x[v]);
    }
    in.store(y + i * V);
  }
};

template <unsigned kLanes>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const float* partials, unsigned count, unsigned size, float* to) {
  const unsigned first = blockIdx.x * 4 * kLanes;
  const double sum = sum_of_parts<kLanes>(partials + first, count, size);
  if (threadIdx.x < 4 * kLanes) to[first + threadIdx.x] = static_cast<float>(sum);
}

}  // namespace

int normalise_relu_sums(const void* z, const NormVectors& norm, void* y, float* partials,
                        const Launch& on) {
  return with_type(on.type, [&]<class T>(T) {
    return reduce_to_partials<T>(NormaliseAndSum<T>{as<T>(z), as<T>(y), norm}, partials, on);
  });
}

void sum_partials(const float* partials, int count, int size, float* to, cudaStream_t stream) {
  ENSURE(size % 32 == 0, "sums of parts: a multiple of 32");
  const auto parts = static_cast<unsigned>(count);
  const auto columns = static_cast<unsigned>(size);
  if (columns >= 4096)
    sum_kernel<8><<<columns / 32, kThreads, 0, stream>>>(partials, parts, columns, to);
  else  // few: more threads for each
    sum_kernel<2><<<columns / 8, kThreads, 0, stream>>>(partials, parts, columns, to);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
