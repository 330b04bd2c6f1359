// Pillow's antialiased bilinear scaling of many images, bit for bit as training/data/resize.cpp.
#include "training/data/gpu/resize.hpp"

#include "common/gpu/native.hpp"

namespace shakedown::gpu {
namespace {

constexpr int kThreads = 224;     // ImageNet's row, in whole warps
constexpr int kRowsPerBlock = 8;  // of the source: each weight is read once for all of them
constexpr int kWeightBits = 22;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

/// As many as any output coordinate can have: the triangle is two supports wide, and both its ends
/// are rounded.
__host__ __device__ int most_taps(int from, int to) {
  const int support = from > to ? (from + to - 1) / to : 1;
  return 2 * support + 1;
}

/// The words of a filter: `to` first source coordinates, `to` counts, then weights[tap][output].
struct Filter {
  __device__ Filter(std::int32_t* words, int to)
      : first(words), count(words + to), weights(words + 2 * to), to(to) {}
  __device__ std::int32_t& weight(int tap, int i) const { return weights[tap * to + i]; }

  std::int32_t* first;
  std::int32_t* count;
  std::int32_t* weights;
  int to;
};

__device__ int rounded(double value) { return static_cast<int>(lround(value)); }

/// The triangle's height over the source pixel; no operations are fused, as on the host.
__device__ double triangle(int x, double center, double support) {
  const double distance = fabs(__dadd_rn(__dsub_rn(x, center), 0.5));
  return fmax(__dsub_rn(1.0, __ddiv_rn(distance, support)), 0.0);
}

__device__ void set_filter(const Filter& filter, int from, int i) {
  const double scale = __ddiv_rn(from, filter.to);
  const double support = fmax(scale, 1.0);
  const double center = __dmul_rn(i + 0.5, scale);
  const int first = max(rounded(__dsub_rn(center, support)), 0);
  const int last = min(rounded(__dadd_rn(center, support)), from);
  double total = 0;
  for (int x = first; x < last; ++x) total = __dadd_rn(total, triangle(x, center, support));
  filter.first[i] = first;
  filter.count[i] = last - first;
  for (int x = first; x < last; ++x)
    filter.weight(x - first, i) = rounded(
        __dmul_rn(__ddiv_rn(triangle(x, center, support), total), double{1 << kWeightBits}));
}

__device__ std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(min(max(sum >> kWeightBits, 0), 255));
}

__global__ void set_filters_kernel(const ScaledRegion* regions, int size) {
  const ScaledRegion region = regions[blockIdx.y];
  const bool down = blockIdx.x == 1;
  const Filter filter(down ? region.down : region.across, size);
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads)
    set_filter(filter, down ? region.height : region.width, i);
}

/// A thread per column of pixels, in kRowsPerBlock rows of one region.
__global__ void __launch_bounds__(kThreads)
    scale_across_kernel(const ScaledRegion* regions, int size) {
  const ScaledRegion region = regions[blockIdx.y];
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock;
  if (row >= region.height) return;
  const Filter filter(region.across, size);
  for (int x = static_cast<int>(threadIdx.x); x < size; x += kThreads) {
    std::int32_t sums[kRowsPerBlock][3];
#pragma unroll
    for (auto& sum : sums) sum[0] = sum[1] = sum[2] = kHalf;
    const int count = filter.count[x];
    const std::uint8_t* pixel =
        region.rgb + static_cast<std::size_t>(row) * region.pitch + 3 * filter.first[x];
    for (int tap = 0; tap < count; ++tap, pixel += 3) {
      const std::int32_t weight = filter.weight(tap, x);
#pragma unroll
      for (int r = 0; r < kRowsPerBlock; ++r) {
        if (row + r >= region.height) continue;
        const std::uint8_t* source = pixel + static_cast<std::size_t>(r) * region.pitch;
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[r][c] += weight * source[c];
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerBlock; ++r) {
      if (row + r >= region.height) continue;
      std::uint8_t* to = region.rows + 3 * (static_cast<std::size_t>(row + r) * size + x);
#pragma unroll
      for (int c = 0; c < 3; ++c) to[c] = to_byte(sums[r][c]);
    }
  }
}

/// A block per output row, a thread per pixel of it.
__global__ void __launch_bounds__(kThreads)
    scale_down_kernel(const ScaledRegion* regions, int size) {
  const ScaledRegion region = regions[blockIdx.y];
  const int y = static_cast<int>(blockIdx.x);
  const Filter filter(region.down, size);
  const int count = filter.count[y];
  const std::size_t row_bytes = std::size_t{3} * size;
  const std::uint8_t* top = region.rows + filter.first[y] * row_bytes;
  for (int x = static_cast<int>(threadIdx.x); x < size; x += kThreads) {
    std::int32_t sums[3] = {kHalf, kHalf, kHalf};
    const std::uint8_t* pixel = top + 3 * x;
    for (int tap = 0; tap < count; ++tap, pixel += row_bytes) {
      const std::int32_t weight = filter.weight(tap, y);
#pragma unroll
      for (int c = 0; c < 3; ++c) sums[c] += weight * pixel[c];
    }
    const int column = region.mirror ? size - 1 - x : x;
    std::uint8_t* to = region.out + y * row_bytes + 3 * column;
#pragma unroll
    for (int c = 0; c < 3; ++c) to[c] = to_byte(sums[c]);
  }
}

constexpr int kMarkedRows = 8;
constexpr int kMarkBytes = 8;
constexpr int kMarkThreads = kMarkedRows * kMarkBytes;

/// The byte that thread t marks, of image i, and its value.
struct Mark {
  __device__ Mark(const MarkedImages& images, int i, int t) {
    const auto& image = images.image[i];
    const int row = t / kMarkBytes * (image.height - 1) / (kMarkedRows - 1);
    byte = image.rgb + static_cast<std::size_t>(row) * image.pitch + 3 * image.width - kMarkBytes +
           t % kMarkBytes;
    value = static_cast<std::uint8_t>((t + 1) * 2654435761U >> 24);
  }
  std::uint8_t* byte;
  std::uint8_t value;
};

__global__ void mark_images_kernel(MarkedImages images) {
  const Mark mark(images, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
  *mark.byte = mark.value;
}

__global__ void check_marks_kernel(MarkedImages images, std::uint8_t* written) {
  const Mark mark(images, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
  const unsigned same = __ballot_sync(~0U, *mark.byte == mark.value);
  const unsigned of_row = same >> (threadIdx.x % warpSize / kMarkBytes * kMarkBytes) & 0xFFU;
  const int left = __syncthreads_or(of_row == 0xFFU);
  if (threadIdx.x == 0) written[blockIdx.x] = left ? 0 : 1;
}

}  // namespace

std::size_t filter_words(int from, int to) {
  return static_cast<std::size_t>(to) * static_cast<std::size_t>(2 + most_taps(from, to));
}

void scale_regions(std::span<const ScaledRegion> regions, int tallest, int size,
                   cudaStream_t stream) {
  const auto count = static_cast<unsigned>(regions.size());
  const auto blocks = static_cast<unsigned>((tallest + kRowsPerBlock - 1) / kRowsPerBlock);
  set_filters_kernel<<<dim3(2, count), kThreads, 0, stream>>>(regions.data(), size);
  CHECK_LAUNCH();
  scale_across_kernel<<<dim3(blocks, count), kThreads, 0, stream>>>(regions.data(), size);
  CHECK_LAUNCH();
  scale_down_kernel<<<dim3(static_cast<unsigned>(size), count), kThreads, 0, stream>>>(
      regions.data(), size);
  CHECK_LAUNCH();
}

void mark_images(const MarkedImages& images, int count, cudaStream_t stream) {
  mark_images_kernel<<<static_cast<unsigned>(count), kMarkThreads, 0, stream>>>(images);
  CHECK_LAUNCH();
}

void check_marks(const MarkedImages& images, int count, std::uint8_t* written,
                 cudaStream_t stream) {
  check_marks_kernel<<<static_cast<unsigned>(count), kMarkThreads, 0, stream>>>(images, written);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
