#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "common/ensure.hpp"
#include "common/kernels.hpp"
#include "common/numbers.hpp"
#include "common/types.hpp"

namespace shakedown::cpu {

// Building blocks of the cpu backend's elementwise kernels: loops over the elements of a view,
// in float32.

using number_format::Bfloat16;
using number_format::Float16;
using number_format::load;
using number_format::store;

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
    default: ENSURE(false, std::string("elementwise kernel on ") + name_of(x.type));
  }
}

template <class Body>
void parallel_for(std::size_t count, Body&& body) {
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < count; ++i) body(i);
}

}  // namespace shakedown::cpu
