#include "common/cpu/kernels.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>

#include "common/ensure.hpp"
#include "common/hash.hpp"

namespace shakedown::cpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Moves the time from which one way of a link is free, and returns it; 0 where it is not needed.
std::uint64_t occupy(std::uint64_t& free_at, std::uint64_t began, std::uint64_t needed) {
  if (needed == 0) return 0;
  return free_at = std::max(free_at, began) + needed;
}

class CpuKernels final : public Kernels {
 public:
  void fill(View x, double value, Stream&) const override {
    dispatch(x, [&](auto* to) {
      parallel_for(x.count, [=](std::size_t i) { store(to[i], static_cast<float>(value)); });
    });
  }

  void convert(ConstView from, View to, Stream&) const override {
    ENSURE(from.count == to.count, "convert counts");
    dispatch(from, [&](const auto* source) {
      dispatch(to, [&](auto* target) {
        parallel_for(to.count, [=](std::size_t i) { store(target[i], load(source[i])); });
      });
    });
  }

  void accumulate(View sum, ConstView x, bool first, Stream&) const override {
    ENSURE(sum.count == x.count && sum.type == DataType::float32, "accumulate views");
    auto* total = static_cast<float*>(sum.data);
    dispatch(x, [&](const auto* from) {
      parallel_for(x.count,
                   [=](std::size_t i) { total[i] = (first ? 0.0F : total[i]) + load(from[i]); });
    });
  }

  void scale(ConstView from, View to, float factor, Stream&) const override {
    ENSURE(from.count == to.count && from.type == DataType::float32, "scale views");
    const auto* source = static_cast<const float*>(from.data);
    dispatch(to, [&](auto* target) {
      parallel_for(to.count, [=](std::size_t i) { store(target[i], source[i] * factor); });
    });
  }

  void gather_chunks(View to, ConstView from, const std::int64_t* sources, Stream&) const override {
    const auto* source = static_cast<const float*>(from.data);
    auto* target = static_cast<float*>(to.data);
    for (std::size_t i = 0; i < to.count; ++i) {
      const std::int64_t chunk = sources[i / kFlatAlignment];
      target[i] =
          chunk < 0 ? 0.0F
                    : source[static_cast<std::size_t>(chunk) * kFlatAlignment + i % kFlatAlignment];
    }
  }

  void check_finite(ConstView x, std::int32_t* finite, Stream&) const override {
    int all = 1;
    dispatch(x, [&](const auto* from) {
#pragma omp parallel for schedule(static) reduction(& : all)
      for (std::size_t i = 0; i < x.count; ++i) all &= std::isfinite(load(from[i])) ? 1 : 0;
    });
    *finite &= all;
  }

  void add_bit_hash(ConstView x, std::uint64_t* hash, Stream&) const override {
    *hash += bit_hash(x);
  }

  void stamp(View x, const Stamps& stamps, std::uint32_t contributor, Stream&) const override {
    dispatch(x, [&](auto* to) {
      parallel_for(x.count, [=](std::size_t i) { store(to[i], stamp_by(contributor, stamps, i)); });
    });
  }

  void check_stamps(ConstView x, const Stamps& stamps, StampErrors* errors,
                    Stream&) const override {
    std::uint64_t wrong = 0;
    std::uint64_t first = errors->first;
    dispatch(x, [&](const auto* from) {
#pragma omp parallel for schedule(static) reduction(+ : wrong) reduction(min : first)
      for (std::size_t i = 0; i < x.count; ++i) {
        const float found = load(from[i]);
        if (is_average(found, stamps, i)) continue;
        ++wrong;
        first = std::min(first, (stamps.first + i) << 32 | std::bit_cast<std::uint32_t>(found));
      }
    });
    errors->wrong += wrong;
    errors->first = first;
  }

  void occupy_link(DuplexTime* free_at, DuplexTime needed, Stream&) const override {
    const auto now = static_cast<std::uint64_t>(
        std::chrono::nanoseconds(Clock::now().time_since_epoch()).count());
    const std::uint64_t end = std::max(occupy(free_at->send, now, needed.send),
                                       occupy(free_at->receive, now, needed.receive));
    std::this_thread::sleep_until(
        Clock::time_point(std::chrono::nanoseconds(static_cast<std::int64_t>(end))));
  }
};

}  // namespace

const Kernels& kernels() {
  static const CpuKernels kernels{};
  return kernels;
}

}  // namespace shakedown::cpu
