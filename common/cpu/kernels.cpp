#include "common/cpu/kernels.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>

#include "common/error.hpp"
#include "common/half.hpp"
#include "common/update.hpp"

namespace shakedown::cpu {
namespace {

struct Float16 {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

float load(float x) { return x; }
float load(Float16 x) { return float16_to_float(x.bits); }
float load(Bfloat16 x) { return bfloat16_to_float(x.bits); }
void store(float& to, float x) { to = x; }
void store(Float16& to, float x) { to.bits = float_to_float16(x); }
void store(Bfloat16& to, float x) { to.bits = float_to_bfloat16(x); }

/// Calls body with a typed pointer to the elements of x.
template <class Byte, class Body>
void dispatch(BasicView<Byte> x, Body&& body) {
  auto as = [&]<class T>(T) {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    body(static_cast<Element*>(x.data));
  };
  switch (x.type) {
    case DataType::float32: return as(float{});
    case DataType::float16: return as(Float16{});
    case DataType::bfloat16: return as(Bfloat16{});
    default: throw InternalError(std::string("elementwise kernel on ") + name_of(x.type));
  }
}

using Clock = std::chrono::steady_clock;

/// Moves the time from which one way of a link is free, and returns it; 0 where it is not needed.
std::uint64_t occupy(std::uint64_t& free_at, std::uint64_t began, std::uint64_t needed) {
  if (needed == 0) return 0;
  return free_at = std::max(free_at, began) + needed;
}

ConstView gradient_of(const UpdateRange& range) {
  return {range.gradient, range.count, range.gradient_type, Place::device};
}

template <class Body>
void parallel_for(std::size_t count, Body&& body) {
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < count; ++i) body(i);
}

}  // namespace

void CpuKernels::fill(View x, double value, Stream&) const {
  dispatch(x, [&](auto* to) {
    parallel_for(x.count, [=](std::size_t i) { store(to[i], static_cast<float>(value)); });
  });
}

void CpuKernels::convert(ConstView from, View to, Stream&) const {
  ENSURE(from.count == to.count, "convert counts");
  dispatch(from, [&](const auto* source) {
    dispatch(to, [&](auto* target) {
      parallel_for(to.count, [=](std::size_t i) { store(target[i], load(source[i])); });
    });
  });
}

void CpuKernels::accumulate(View sum, ConstView x, bool first, Stream&) const {
  ENSURE(sum.count == x.count && sum.type == DataType::float32, "accumulate views");
  auto* total = static_cast<float*>(sum.data);
  dispatch(x, [&](const auto* from) {
    parallel_for(x.count,
                 [=](std::size_t i) { total[i] = (first ? 0.0F : total[i]) + load(from[i]); });
  });
}

void CpuKernels::scale(ConstView from, View to, float factor, Stream&) const {
  ENSURE(from.count == to.count && from.type == DataType::float32, "scale views");
  const auto* source = static_cast<const float*>(from.data);
  dispatch(to, [&](auto* target) {
    parallel_for(to.count, [=](std::size_t i) { store(target[i], source[i] * factor); });
  });
}

void CpuKernels::gather_chunks(View to, ConstView from, const std::int64_t* sources,
                               Stream&) const {
  const auto* source = static_cast<const float*>(from.data);
  auto* target = static_cast<float*>(to.data);
  for (std::size_t i = 0; i < to.count; ++i) {
    const std::int64_t chunk = sources[i / kFlatAlignment];
    target[i] = chunk < 0
                    ? 0.0F
                    : source[static_cast<std::size_t>(chunk) * kFlatAlignment + i % kFlatAlignment];
  }
}

void CpuKernels::check_finite(ConstView x, StepScalars* scalars, Stream&) const {
  int finite = 1;
  dispatch(x, [&](const auto* from) {
#pragma omp parallel for schedule(static) reduction(& : finite)
    for (std::size_t i = 0; i < x.count; ++i) finite &= std::isfinite(load(from[i])) ? 1 : 0;
  });
  scalars->finite &= finite;
}

void CpuKernels::sgd(const UpdateRange& range, const SgdSettings& settings,
                     const StepScalars* scalars, Stream&) const {
  if (!scalars->finite) return;
  ENSURE(range.compute == nullptr, "the cpu backend computes in float32");
  const float unscale = 1.0F / scalars->loss_scale;
  const float rate = scalars->learning_rate;
  const UpdateRange r = range;
  const SgdSettings s = settings;
  dispatch(gradient_of(r), [&](const auto* gradient) {
    parallel_for(r.count, [=](std::size_t i) {
      const bool decayed = r.decayed == nullptr || r.decayed[i / kFlatAlignment];
      sgd_update(r.master[i], r.state_a[i], load(gradient[i]) * unscale, decayed, s, rate);
    });
  });
}

void CpuKernels::adam(const UpdateRange& range, const AdamSettings& settings,
                      const StepScalars* scalars, Stream&) const {
  if (!scalars->finite) return;
  ENSURE(range.compute == nullptr, "the cpu backend computes in float32");
  const float unscale = 1.0F / scalars->loss_scale;
  const AdamStep step = adam_step(settings, *scalars);
  const UpdateRange r = range;
  const AdamSettings s = settings;
  dispatch(gradient_of(r), [&](const auto* gradient) {
    parallel_for(r.count, [=](std::size_t i) {
      const bool decayed = r.decayed == nullptr || r.decayed[i / kFlatAlignment];
      adam_update(r.master[i], r.state_a[i], r.state_b[i], load(gradient[i]) * unscale, decayed, s,
                  step);
    });
  });
}

void CpuKernels::finish_update(StepScalars* scalars, bool dynamic_scale, Stream&) const {
  finish_step(*scalars, dynamic_scale);
}

void CpuKernels::set_learning_rate(StepScalars* scalars, float value, Stream&) const {
  scalars->learning_rate = value;
}

void CpuKernels::occupy_link(DuplexTime* free_at, DuplexTime needed, Stream&) const {
  const auto now =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count());
  const std::uint64_t end = std::max(occupy(free_at->send, now, needed.send),
                                     occupy(free_at->receive, now, needed.receive));
  std::this_thread::sleep_until(
      Clock::time_point(std::chrono::nanoseconds(static_cast<std::int64_t>(end))));
}

}  // namespace shakedown::cpu
