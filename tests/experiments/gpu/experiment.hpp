// Variants of what compute_perf runs, timed next to one another on one GPU: what a change is
// decided by. Built by `make BACKENDS=gpu build/experiments`; no test, and not installed.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/nvml.hpp"

namespace shakedown::experiments {

struct Bench {
  Device& device;
  Stream& stream;
  std::shared_ptr<Nvml> nvml;
  std::string uuid;
  double seconds = 0.2;  // of a variant, per turn
  int turns = 2;
};

/// A variant: `run` enqueues it once, and returns false where it is refused.
struct Variant {
  std::string name;
  double work = 0;  // of a run: FLOP or bytes
  std::function<bool()> run;
};

/// Times all variants, interleaved, after half a second of the first as warm-up, and prints a line
/// each that begins with `title`: median, lowest and highest of the turns in `unit` (1e12 or 1e9 of
/// the work), SM clock, rate per GHz, and the ratio to the first variant.
void compare(const Bench& bench, const std::string& title, double unit,
             const std::vector<Variant>& variants);

void products(const Bench& bench, int size);
void memory(const Bench& bench, std::size_t bytes);
void gram(const Bench& bench, int batch);

/// Normal numbers of standard deviation 1, as PyTorch's randn makes them: of fp32 precision, or of
/// the precision of double.
enum class Normal { of_fp32, of_double };
void fill_normal(View x, Normal kind, unsigned long long seed, cudaStream_t stream);
/// x = x rounded to fp32; of float64.
void round_to_fp32(View x, cudaStream_t stream);

/// Copies, reads, writes and triads by other kernels than ours.
std::vector<Variant> copies(View from, View to, cudaStream_t stream, int processors);
std::vector<Variant> bulk_copies(View from, View to, cudaStream_t stream, int processors);
std::vector<Variant> reads(View from, unsigned long long* sum, cudaStream_t stream, int processors);
std::vector<Variant> writes(View to, cudaStream_t stream, int processors);
std::vector<Variant> triads(View x, View y, View to, cudaStream_t stream, int processors);

}  // namespace shakedown::experiments
