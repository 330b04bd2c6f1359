#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/error.hpp"
#include "common/kernels.hpp"
#include "common/numbers.hpp"
#include "common/types.hpp"

namespace shakedown::cpu {

class CpuKernels final : public Kernels {
 public:
  void fill(View x, double value, Stream& stream) const override;
  void convert(ConstView from, View to, Stream& stream) const override;
  void accumulate(View sum, ConstView x, bool first, Stream& stream) const override;
  void scale(ConstView from, View to, float factor, Stream& stream) const override;
  void gather_chunks(View to, ConstView from, const std::int64_t* sources,
                     Stream& stream) const override;
  void check_finite(ConstView x, std::int32_t* finite, Stream& stream) const override;
  void add_bit_hash(ConstView x, std::uint64_t* hash, Stream& stream) const override;
  void stamp(View x, const Stamps& stamps, std::uint32_t contributor,
             Stream& stream) const override;
  void check_stamps(ConstView x, const Stamps& stamps, StampErrors* errors,
                    Stream& stream) const override;
  void occupy_link(DuplexTime* free_at, DuplexTime needed, Stream& stream) const override;
};

// Building blocks of the cpu backend's elementwise kernels: loops over the elements of a view,
// in float32.

struct Float16 {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

inline float load(float x) { return x; }
inline float load(Float16 x) { return float16_to_float(x.bits); }
inline float load(Bfloat16 x) { return bfloat16_to_float(x.bits); }
inline void store(float& to, float x) { to = x; }
inline void store(Float16& to, float x) { to.bits = float_to_float16(x); }
inline void store(Bfloat16& to, float x) { to.bits = float_to_bfloat16(x); }

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

template <class Body>
void parallel_for(std::size_t count, Body&& body) {
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < count; ++i) body(i);
}

}  // namespace shakedown::cpu
