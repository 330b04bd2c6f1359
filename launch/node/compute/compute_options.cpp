#include "launch/node/compute/compute_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/fault.hpp"
#include "common/options.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/compute/stream_kernels.hpp"

namespace shakedown::node {
namespace {

constexpr int kCpuSize = 512;
constexpr std::size_t kGpuMiB = 1024;
constexpr std::size_t kCpuMiB = 16;

}  // namespace

bool ComputeOptions::has(const std::string& test) const {
  return std::find(tests.begin(), tests.end(), test) != tests.end();
}

void declare_options(OptionSet& options, ComputeOptions& values) {
  std::vector<std::string> types;
  for (const ProductType type : all_product_types()) types.emplace_back(name_of(type));
  options.heading("Measurement");
  options
      .add("--tests", values.tests,
           "products: FLOP per SM cycle, SM clock and TFLOP/s of matrix products under "
           "load\nmemory: "
           "GB/s of device memory\nhost: GB/s between host and device, each GPU alone and all at "
           "once")
      .one_of({"products", "memory", "host"});
  options.add("--types", values.types, "types of the products")
      .one_of(types)
      .default_text("all that every device supports");
  options.add("--size", values.size, "rows and columns of the matrices, a multiple of 32")
      .at_least(32)
      .at_most(65536)
      .default_text(fmt::format(
          "whole waves of tiles on gpu, 8192 x 8448 x 8192 on 132 SMs; {} on cpu", kCpuSize));
  options
      .add("--bytes", values.memory_bytes,
           "size of each buffer in device memory, a multiple of 32K: 256M, 1G; in host memory 256M "
           "at most")
      .metavar("SIZE")
      .default_text(fmt::format("{} MiB on gpu, {} MiB on cpu", kGpuMiB, kCpuMiB));
  options
      .add("--seconds", values.seconds,
           "timed seconds of each type's products, 16 batches of 20 ms at least, after a warm-up")
      .at_least(0.001)
      .at_most(300);
  options
      .add(
          "--rounds", values.rounds,
          "interleaved rounds of memory and host: 2 samples per access and round, 4 per direction; "
          "fewer than 5 rounds of host are not judged")
      .at_least(1);
  options.add("--csv", values.csv, "CSV file, one line per GPU, metric and look").metavar("FILE");
  options.add("--record", values.record, ".jsonl file to which the results are appended")
      .metavar("FILE");
  declare_options(options, values.backend);
  options.heading("Verdict");
  declare_options(options, values.judge);
  declare_fault_option(options, values.fault);
  options.check([&] {
    if (values.size % 32 != 0)
      throw UsageError(fmt::format("--size {}: must be a multiple of 32", values.size));
    buffer_bytes(values, BackendKind::cpu);
  });
}

ProductSpec product_spec(const ComputeOptions& options, ProductType type, const Unit& unit) {
  if (options.size == 0 && unit.multiprocessors > 0) return whole_waves(type, unit.multiprocessors);
  const int n = options.size != 0 ? options.size : kCpuSize;
  return {type, n, n, n};
}

std::size_t buffer_bytes(const ComputeOptions& options, BackendKind kind) {
  if (options.memory_bytes.empty()) return (kind == BackendKind::gpu ? kGpuMiB : kCpuMiB) << 20;
  const std::size_t bytes = parse_bytes("--bytes", options.memory_bytes);
  if (bytes == 0 || bytes % StreamKernels::kChunkBytes != 0)
    throw UsageError(
        fmt::format("--bytes {}: must be a multiple of 32K above 0", options.memory_bytes));
  return bytes;
}

std::string cached_by(const ComputeOptions& options, BackendKind kind) {
  constexpr std::size_t kBeyondCaches = std::size_t{256} << 20;  // twice the L2 of a B200
  const std::size_t bytes = buffer_bytes(options, kind);
  if (kind == BackendKind::cpu || !options.has("memory") || bytes >= kBeyondCaches) return "";
  return fmt::format("--bytes {}: the GPU's caches may hold it: memory is measured from 256M on",
                     options.memory_bytes);
}

}  // namespace shakedown::node
