// Element types, reductions, and counted views of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace shakedown {

enum class DataType {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3,
  float8_e5m2,
  int64,
  int32,
  int8,
  uint64,
  uint32,
  uint8
};
enum class Reduction { sum, prod, min, max, avg };

std::size_t size_of(DataType type);
const char* name_of(DataType type);
const char* name_of(Reduction reduction);

std::vector<DataType> all_data_types();
std::vector<Reduction> all_reductions();
bool is_float8(DataType type);

/// Of the numbers that the host computes with.
template <class T>
constexpr DataType data_type_of() {
  if constexpr (std::is_floating_point_v<T>)
    return sizeof(T) == 8 ? DataType::float64 : DataType::float32;
  constexpr bool is_signed = std::is_signed_v<T>;
  static_assert(std::is_arithmetic_v<T> && sizeof(T) != 2, "no such type");
  if (sizeof(T) == 8) return is_signed ? DataType::int64 : DataType::uint64;
  if (sizeof(T) == 4) return is_signed ? DataType::int32 : DataType::uint32;
  return is_signed ? DataType::int8 : DataType::uint8;
}

/// Where memory lies. On the cpu backend device memory is host memory too.
enum class Place { host, device };

/// A counted, typed, non-owning range of memory; Byte is `void` or `const void`.
template <class Byte>
struct BasicView {
  Byte* data = nullptr;
  std::size_t count = 0;  // elements
  DataType type = DataType::float32;
  Place place = Place::host;

  BasicView() = default;
  BasicView(Byte* data, std::size_t count, DataType type, Place place)
      : data(data), count(count), type(type), place(place) {}
  template <class Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicView(const BasicView<Other>& other)  // NOLINT: a view of constants is made implicitly
      : data(other.data), count(other.count), type(other.type), place(other.place) {}
  template <class T>
  BasicView(std::span<T> elements)  // NOLINT: host memory converts implicitly
      : data(elements.data()),
        count(elements.size()),
        type(data_type_of<std::remove_const_t<T>>()) {}

  std::size_t bytes() const { return count * size_of(type); }

  /// Elements [offset, offset + length); throws InternalError outside the view.
  BasicView slice(std::size_t offset, std::size_t length) const;
};

using View = BasicView<void>;
using ConstView = BasicView<const void>;

extern template struct BasicView<void>;
extern template struct BasicView<const void>;

/// "12.5 MiB": binary units, for messages.
std::string readable_bytes(double bytes);

}  // namespace shakedown
