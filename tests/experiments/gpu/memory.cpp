// Device memory: ours and the driver's own copy first, then other kernels, then other distances
// between the buffers.
#include <fmt/format.h>

#include "common/gpu/native.hpp"
#include "launch/node/compute/stream_kernels.hpp"
#include "tests/experiments/gpu/experiment.hpp"

namespace shakedown::experiments {
namespace {

View words(void* data, std::size_t bytes) {
  return {data, bytes / sizeof(std::uint64_t), DataType::uint64, Place::device};
}

Variant driver_copy(View from, View to, cudaStream_t stream, const std::string& name) {
  return {name, 2. * static_cast<double>(to.bytes()), [=] {
            CHECK_CUDA(
                cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice, stream));
            return true;
          }};
}

std::vector<Variant> joined(std::vector<Variant> first, const std::vector<Variant>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Times them, and then checks what each of them writes to `to`.
void compare_checked(const Bench& bench, const std::string& title,
                     const std::vector<Variant>& variants, View to, const node::Ramp& ramp) {
  compare(bench, title, 1e9, variants);
  const auto kernels = node::make_stream_kernels(BackendKind::gpu);
  const Buffer wrong(bench.device, sizeof(node::WordErrors));
  for (const Variant& variant : variants) {
    if (variant.name == "cudaMemsetAsync") continue;
    const std::vector<node::WordErrors> none(1);
    upload<node::WordErrors>(bench.device, bench.stream, wrong.data(), none);
    bench.device.zero(to.data, to.bytes(), bench.stream);
    variant.run();
    kernels->check(to, ramp, static_cast<node::WordErrors*>(wrong.data()), bench.stream);
    const auto found = download<node::WordErrors>(bench.device, bench.stream, wrong.data(), 1);
    if (found.front().count > 0)
      fmt::print("{:14} WRONG: {} words: {}\n", title, found.front().count, variant.name);
  }
}

}  // namespace

void memory(const Bench& given, std::size_t bytes) {
  Bench bench = given;
  bench.seconds = std::min(bench.seconds, 0.06);
  bench.turns = 3;
  int processors = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  const cudaStream_t stream = shakedown::gpu::native(bench.stream);
  const auto kernels = node::make_stream_kernels(BackendKind::gpu);
  const Buffer a(bench.device, bytes), b(bench.device, bytes), c(bench.device, bytes);
  const Buffer sum(bench.device, sizeof(std::uint64_t));
  const View x = words(a.data(), bytes), y = words(b.data(), bytes), z = words(c.data(), bytes);
  kernels->write(x, {}, bench.stream);
  kernels->write(y, {77}, bench.stream);
  const auto ours = [&](const char* name, double moved, std::function<void()> run) {
    return Variant{std::string("as compute_perf: ") + name, moved * static_cast<double>(bytes),
                   [run] {
                     run();
                     return true;
                   }};
  };
  auto* const total = static_cast<std::uint64_t*>(sum.data());
  const Variant copy = ours("copy", 2, [&] { kernels->copy(x, z, bench.stream); });
  compare_checked(bench, "copy",
                  joined({copy, driver_copy(x, z, stream, "cudaMemcpyAsync, as PyTorch")},
                         copies(x, z, stream, processors)),
                  z, {});
  compare(bench, "read", 1e9,
          joined({ours("read", 1, [&] { kernels->read(x, total, bench.stream); })},
                 reads(x, reinterpret_cast<unsigned long long*>(total), stream, processors)));
  compare_checked(bench, "write",
                  joined({ours("write", 1, [&] { kernels->write(z, {}, bench.stream); }),
                          {"cudaMemsetAsync", static_cast<double>(bytes),
                           [=] {
                             CHECK_CUDA(cudaMemsetAsync(z.data, 1, bytes, stream));
                             return true;
                           }}},
                         writes(z, stream, processors)),
                  z, {});
  compare_checked(bench, "triad",
                  joined({ours("triad", 3, [&] { kernels->triad(x, y, z, bench.stream); })},
                         triads(x, y, z, stream, processors)),
                  z, node::triad_of({}, {77}));
  CHECK_CUDA(cudaMemsetAsync(y.data, 0, bytes, stream));
  compare(bench, "copy zeros", 1e9,
          {ours("copy", 2, [&] { kernels->copy(y, z, bench.stream); }),
           driver_copy(y, z, stream, "cudaMemcpyAsync")});
  // One allocation, the second buffer at other distances from the first.
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const Buffer both(bench.device, 2 * bytes + 80 * kMiB);
  std::vector<Variant> distances;
  for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}, kMiB, 2 * kMiB, 5 * kMiB,
                                   16 * kMiB, 33 * kMiB, 64 * kMiB + 65536}) {
    const View from = words(both.data(), bytes);
    const View to = words(static_cast<char*>(both.data()) + bytes + offset, bytes);
    distances.push_back(
        ours("copy", 2, [&kernels, &bench, from, to] { kernels->copy(from, to, bench.stream); }));
    distances.back().name =
        fmt::format("as compute_perf, second buffer {} KiB further on", offset / 1024);
    distances.push_back(driver_copy(
        from, to, stream, fmt::format("cudaMemcpyAsync, {} KiB further on", offset / 1024)));
  }
  compare(bench, "distance", 1e9, distances);
  // Last: a kernel that hung would take the rest with it.
  compare_checked(bench, "bulk copy", joined({copy}, bulk_copies(x, z, stream, processors)), z, {});
}

}  // namespace shakedown::experiments
