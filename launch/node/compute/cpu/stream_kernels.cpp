#include "launch/node/compute/stream_kernels.hpp"

#include <algorithm>

namespace shakedown::node::cpu {
namespace {

std::uint64_t* words(View x) { return static_cast<std::uint64_t*>(x.data); }
const std::uint64_t* words(ConstView x) { return static_cast<const std::uint64_t*>(x.data); }

class HostStreamKernels final : public StreamKernels {
 public:
  void write(View x, const Ramp& ramp, Stream&) const override {
    std::uint64_t* const to = words(x);
#pragma omp parallel for simd schedule(static)
    for (std::size_t i = 0; i < x.count; ++i) to[i] = ramp.first + i * ramp.step;
  }
  void read(ConstView x, std::uint64_t* sum, Stream&) const override {
    const std::uint64_t* const from = words(x);
    std::uint64_t all = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : all)
    for (std::size_t i = 0; i < x.count; ++i) all += from[i];
    *sum += all;
  }
  void copy(ConstView from, View to, Stream&) const override {
    const std::uint64_t* const source = words(from);
    std::uint64_t* const target = words(to);
#pragma omp parallel for simd schedule(static)
    for (std::size_t i = 0; i < to.count; ++i) target[i] = source[i];
  }
  void triad(ConstView x, ConstView y, View to, Stream&) const override {
    const std::uint64_t* const first = words(x);
    const std::uint64_t* const second = words(y);
    std::uint64_t* const target = words(to);
#pragma omp parallel for simd schedule(static)
    for (std::size_t i = 0; i < to.count; ++i) target[i] = first[i] + kTriadFactor * second[i];
  }
  void check(ConstView x, const Ramp& ramp, WordErrors* wrong, Stream&) const override {
    const std::uint64_t* const from = words(x);
    unsigned long long count = 0;
    unsigned long long first = wrong->first;
#pragma omp parallel for schedule(static) reduction(+ : count) reduction(min : first)
    for (std::size_t i = 0; i < x.count; ++i) {
      if (from[i] == ramp.first + i * ramp.step) continue;
      ++count;
      first = std::min(first, static_cast<unsigned long long>(i));
    }
    wrong->count += count;
    wrong->first = first;
  }
};

}  // namespace

std::unique_ptr<StreamKernels> make_stream_kernels() {
  return std::make_unique<HostStreamKernels>();
}

}  // namespace shakedown::node::cpu
