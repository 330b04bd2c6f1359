#include "launch/node/soak/gpu/sm_probe.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/soak/sm_probe.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr int kThreads = 256;  // two warps for each of an SM's four parts
constexpr int kAttempts = 50;  // to get to SMs that other work occupies

/// What blocks share, by %smid.
struct Board {
  unsigned wanted_in_all, claimed_in_all;
  unsigned wanted[kMostProcessors];
  unsigned claims[kMostProcessors];
  unsigned moved[kMostProcessors];  // a block that ended on another SM than it began on
  unsigned long long wrong[kMostProcessors];
  unsigned long long nanoseconds[kMostProcessors];
};

struct Result {
  std::uint64_t hash = 0;
  unsigned wrong = 0;
};

/// D += A B of m16n8k16, of 2-byte floats with sums in fp32: PTX ISA, "Matrix Fragments for
/// mma.m16n8k16 with floating point type". From compute capability 8.0 on.
template <ProbeKind kind>
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kind == ProbeKind::mma_fp16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// Two values of magnitudes in [1, 2) with any sign and significand.
template <ProbeKind kind>
__device__ unsigned pair_from(std::uint64_t bits) {
  const auto word = static_cast<unsigned>(bits);
  return kind == ProbeKind::mma_fp16 ? (word & 0x83FF83FFU) | 0x3C003C00U
                                     : (word & 0x807F807FU) | 0x3F803F80U;
}

template <ProbeKind kind>
__device__ unsigned pair_of(int low, int high) {
  if constexpr (kind == ProbeKind::mma_fp16)
    return __half_as_ushort(__int2half_rn(low)) |
           static_cast<unsigned>(__half_as_ushort(__int2half_rn(high))) << 16;
  else
    return __bfloat16_as_ushort(__float2bfloat16(static_cast<float>(low))) |
           static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16(static_cast<float>(high))))
               << 16;
}

/// A lane's part of small integers A[16, 16] and B[16, 8], and of their product.
template <ProbeKind kind>
struct Exact {
  unsigned a[4], b[2];
  float product[4];

  __device__ Exact(std::uint64_t seed, int lane) {
    const int row = lane / 4;
    const int pair = lane % 4 * 2;  // k of A and B, column of C
    for (int i = 0; i < 4; ++i) {
      const int line = row + i % 2 * 8;
      const int k = pair + i / 2 * 8;
      a[i] = pair_of<kind>(probe::small_integer(seed, 0, line, k),
                           probe::small_integer(seed, 0, line, k + 1));
    }
    for (int i = 0; i < 2; ++i)
      b[i] = pair_of<kind>(probe::small_integer(seed, 1, row, pair + i * 8),
                           probe::small_integer(seed, 1, row, pair + i * 8 + 1));
    for (int i = 0; i < 4; ++i) {
      int sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += probe::small_integer(seed, 0, row + i / 2 * 8, k) *
               probe::small_integer(seed, 1, pair + i % 2, k);
      product[i] = static_cast<float>(sum);
    }
  }
};

template <ProbeKind kind>
__device__ Result run_mma(const ProbeTask& task, int lane) {
  constexpr int kHalf = probe::kMmaPerStep / 2;
  const Exact<kind> exact(task.seed, lane);
  Result result{probe::start(task.seed, lane), 0};
  for (int step = 0; step < task.steps; ++step) {
    const std::uint64_t m0 = mix(result.hash + 1);
    const std::uint64_t m1 = mix(result.hash + 2);
    const std::uint64_t m2 = mix(result.hash + 3);
    const unsigned a[4] = {pair_from<kind>(m0), pair_from<kind>(m0 >> 32), pair_from<kind>(m1),
                           pair_from<kind>(m1 >> 32)};
    const unsigned b[2] = {pair_from<kind>(m2), pair_from<kind>(m2 >> 32)};
    float d[4] = {};
    float e[4] = {};
    std::uint64_t sum = 0;
    for (int i = 0; i < kHalf; ++i) {
      multiply<kind>(d, a, b);
      multiply<kind>(e, exact.a, exact.b);
      for (int j = 0; j < 4; ++j)
        sum += static_cast<std::uint64_t>(probe::bits_of(d[j])) << (8 * j);
    }
    for (int j = 0; j < 4; ++j)
      if (e[j] != kHalf * exact.product[j]) ++result.wrong;
    result.hash = mix(result.hash ^ sum);
  }
  return result;
}

template <ProbeKind kind>
__device__ Result run_chain(const ProbeTask& task, int lane) {
  Result result{probe::start(task.seed, lane), 0};
  for (int step = 0; step < task.steps; ++step) result.hash = probe::step<kind>(result.hash);
  return result;
}

/// `hashes` has kThreads for each %smid.
template <ProbeKind kind>
__global__ void __launch_bounds__(kThreads)
    probe_kernel(ProbeTask task, Board* board, std::uint64_t* hashes) {
  const int processor = this_processor();
  if (processor >= kMostProcessors || board->wanted[processor] == 0)
    return hold_processor(&board->claimed_in_all, board->wanted_in_all);
  if (!claimed(&board->claims[processor])) return;
  if (threadIdx.x == 0) atomicAdd(&board->claimed_in_all, 1U);
  const unsigned long long begin = nanoseconds();
  const int lane = static_cast<int>(threadIdx.x) % kProbeLanes;
  Result result;
  if constexpr (kind == ProbeKind::mma_fp16 || kind == ProbeKind::mma_bf16)
    result = run_mma<kind>(task, lane);
  else
    result = run_chain<kind>(task, lane);
  hashes[static_cast<std::size_t>(processor) * kThreads + threadIdx.x] = result.hash;
  if (result.wrong > 0)
    atomicAdd(&board->wrong[processor], static_cast<unsigned long long>(result.wrong));
  __syncthreads();
  if (threadIdx.x != 0) return;
  board->nanoseconds[processor] = nanoseconds() - begin;
  board->moved[processor] = this_processor() != processor ? 1 : 0;
}

/// Whether the kernel was compiled for an architecture that has these instructions: PTX of an older
/// one runs on a newer GPU without them.
bool has_mma() {
  cudaFuncAttributes attributes{};
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, probe_kernel<ProbeKind::mma_fp16>));
  return attributes.ptxVersion >= 80;
}

class CudaProbe final : public Probe {
 public:
  explicit CudaProbe(Device& device)
      : device_(device),
        processors_(gpu::processors(device)),
        board_(device, sizeof(Board)),
        hashes_(device, static_cast<std::size_t>(processors_.back() + 1) * kThreads *
                            sizeof(std::uint64_t)) {
    const auto stream = device.make_stream();
    device.zero(hashes_.data(), hashes_.bytes(), *stream);
    stream->synchronize();
  }

  std::vector<ProbeKind> kinds() const override {
    std::vector<ProbeKind> kinds{ProbeKind::integer, ProbeKind::fma_fp32, ProbeKind::fma_fp64};
    if (has_mma()) kinds.insert(kinds.end(), {ProbeKind::mma_fp16, ProbeKind::mma_bf16});
    return kinds;
  }
  std::vector<int> processors() const override { return processors_; }

  std::vector<ProbeAnswer> run(const ProbeTask& task, std::span<const int> processors,
                               Stream& stream) override {
    std::vector<int> missing(processors.begin(), processors.end());
    for (const int processor : missing)
      ENSURE(processor >= 0 && processor <= processors_.back(), "no such SM");
    std::vector<ProbeAnswer> answers;
    for (int attempt = 0; attempt < kAttempts && !missing.empty(); ++attempt) {
      for (ProbeAnswer& answer : try_on(task, missing, stream)) {
        std::erase(missing, answer.processor);
        answers.push_back(std::move(answer));
      }
    }
    return answers;
  }

 private:
  std::vector<ProbeAnswer> try_on(const ProbeTask& task, const std::vector<int>& wanted,
                                  Stream& stream) {
    std::vector<Board> board(1);
    for (const int processor : wanted) board[0].wanted[processor] = 1;
    board[0].wanted_in_all = static_cast<unsigned>(wanted.size());
    upload<Board>(device_, stream, board_.data(), board);
    launch(task, stream);
    board = download<Board>(device_, stream, board_.data(), 1);
    const auto hashes = download<std::uint64_t>(device_, stream, hashes_.data(),
                                                hashes_.bytes() / sizeof(std::uint64_t));
    std::vector<ProbeAnswer> answers;
    for (const int processor : wanted) {
      if (board[0].claims[processor] == 0 || board[0].moved[processor] != 0) continue;
      const auto begin = hashes.begin() + static_cast<std::ptrdiff_t>(processor) * kThreads;
      answers.push_back({processor,
                         static_cast<double>(board[0].nanoseconds[processor]) * 1e-6,
                         {begin, begin + kThreads},
                         board[0].wrong[processor]});
    }
    return answers;
  }

  void launch(const ProbeTask& task, Stream& stream) {
    auto* const board = static_cast<Board*>(board_.data());
    auto* const hashes = static_cast<std::uint64_t*>(hashes_.data());
    const auto start = [&](auto kernel) {
      launch_one_per_processor(kernel, processors_.size(), kThreads, shakedown::gpu::native(stream),
                               task, board, hashes);
    };
    switch (task.kind) {
      case ProbeKind::integer: start(probe_kernel<ProbeKind::integer>); break;
      case ProbeKind::fma_fp32: start(probe_kernel<ProbeKind::fma_fp32>); break;
      case ProbeKind::fma_fp64: start(probe_kernel<ProbeKind::fma_fp64>); break;
      case ProbeKind::mma_fp16: start(probe_kernel<ProbeKind::mma_fp16>); break;
      case ProbeKind::mma_bf16: start(probe_kernel<ProbeKind::mma_bf16>); break;
    }
  }

  Device& device_;
  std::vector<int> processors_;
  Buffer board_;
  Buffer hashes_;
};

}  // namespace

std::unique_ptr<Probe> make_probe(Device& device) { return std::make_unique<CudaProbe>(device); }

namespace {

__global__ void see_processors_kernel(unsigned char* seen) {
  const int processor = this_processor();
  if (threadIdx.x == 0 && processor < kMostProcessors) seen[processor] = 1;
}

}  // namespace

std::vector<int> processors(Device& device) {
  const auto count = static_cast<std::size_t>(device.identity().compute_threads);
  const auto stream = device.make_stream();
  const Buffer seen(device, kMostProcessors);
  device.zero(seen.data(), seen.bytes(), *stream);
  std::vector<int> found;
  // Other work may occupy an SM for a while; a thousand threads a block leave room for few.
  for (int attempt = 0; attempt < 100 && found.size() < count; ++attempt) {
    see_processors_kernel<<<static_cast<unsigned>(count) * 16, 1024, 0,
                            shakedown::gpu::native(*stream)>>>(
        static_cast<unsigned char*>(seen.data()));
    CHECK_LAUNCH();
    const auto flags = download<unsigned char>(device, *stream, seen.data(), kMostProcessors);
    found.clear();
    for (int processor = 0; processor < kMostProcessors; ++processor)
      if (flags[static_cast<std::size_t>(processor)] != 0) found.push_back(processor);
  }
  if (found.size() != count)
    throw InconclusiveError("blocks ran on " + std::to_string(found.size()) + " of " +
                            std::to_string(count) + " SMs");
  return found;
}

}  // namespace shakedown::node::gpu
