#include "common/host_reduction.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "common/error.hpp"
#include "common/half.hpp"

namespace shakedown {
namespace {

/// Elements that are computed at a time: their sums stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

/// How an element is stored, and the type that it is computed in.
template <class T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct Float16 {
  using Stored = std::uint16_t;
  using Computed = float;
  static float load(std::uint16_t bits) { return float16_to_float(bits); }
  static std::uint16_t store(float x) { return float_to_float16(x); }
};
struct Bfloat16 {
  using Stored = std::uint16_t;
  using Computed = float;
  static float load(std::uint16_t bits) { return bfloat16_to_float(bits); }
  static std::uint16_t store(float x) { return float_to_bfloat16(x); }
};

/// Calls body with the format of `type`.
template <class Body>
void with_format(DataType type, Body&& body) {
  switch (type) {
    case DataType::float64: return body(Plain<double>());
    case DataType::float32: return body(Plain<float>());
    case DataType::float16: return body(Float16());
    case DataType::bfloat16: return body(Bfloat16());
    case DataType::int64: return body(Plain<std::int64_t>());
    case DataType::int32: return body(Plain<std::int32_t>());
    case DataType::int8: return body(Plain<std::int8_t>());
    case DataType::uint64: return body(Plain<std::uint64_t>());
    case DataType::uint32: return body(Plain<std::uint32_t>());
    case DataType::uint8: return body(Plain<std::uint8_t>());
    case DataType::float8_e4m3:
    case DataType::float8_e5m2: break;
  }
  throw InternalError(std::string("a reduction of ") + name_of(type) + " on the host");
}

/// Calls body with a function of two values.
template <class T, class Body>
void with_operation(Reduction op, Body&& body) {
  switch (op) {
    case Reduction::prod: return body([](T a, T b) { return static_cast<T>(a * b); });
    case Reduction::min: return body([](T a, T b) { return b < a ? b : a; });
    case Reduction::max: return body([](T a, T b) { return a < b ? b : a; });
    case Reduction::sum:
    case Reduction::avg: return body([](T a, T b) { return static_cast<T>(a + b); });
  }
}

template <class T>
T divisor_of(std::size_t n) {
  ENSURE(sizeof(T) > 1 || n <= 127, "the average of 8-bit integers is for at most 127 ranks");
  return static_cast<T>(n);
}

}  // namespace

void reduce_elements(Reduction op, std::span<const void* const> inputs, View to) {
  with_format(to.type, [&]<class Format>(Format) {
    using T = typename Format::Computed;
    using Stored = typename Format::Stored;
    const T divisor = op == Reduction::avg ? divisor_of<T>(inputs.size()) : T(1);
    with_operation<T>(op, [&](auto combine) {
      std::array<T, kBlock> block;
      for (std::size_t begin = 0; begin < to.count; begin += kBlock) {
        const std::size_t count = std::min(kBlock, to.count - begin);
        const auto* first = static_cast<const Stored*>(inputs[0]) + begin;
#pragma omp simd
        for (std::size_t i = 0; i < count; ++i) block[i] = Format::load(first[i]);
        for (const void* input : inputs.subspan(1)) {
          const auto* next = static_cast<const Stored*>(input) + begin;
#pragma omp simd
          for (std::size_t i = 0; i < count; ++i)
            block[i] = combine(block[i], Format::load(next[i]));
        }
        if (op == Reduction::avg) {
#pragma omp simd
          for (std::size_t i = 0; i < count; ++i) block[i] = static_cast<T>(block[i] / divisor);
        }
        auto* result = static_cast<Stored*>(to.data) + begin;
#pragma omp simd
        for (std::size_t i = 0; i < count; ++i) result[i] = Format::store(block[i]);
      }
    });
  });
}

void divide_elements(View x, int n) {
  with_format(x.type, [&]<class Format>(Format) {
    using T = typename Format::Computed;
    const T divisor = divisor_of<T>(static_cast<std::size_t>(n));
    auto* element = static_cast<typename Format::Stored*>(x.data);
#pragma omp simd
    for (std::size_t i = 0; i < x.count; ++i)
      element[i] = Format::store(static_cast<T>(Format::load(element[i]) / divisor));
  });
}

}  // namespace shakedown
