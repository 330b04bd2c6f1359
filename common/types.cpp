#include "common/types.hpp"

#include <fmt/format.h>

#include <array>

#include "common/ensure.hpp"

namespace shakedown {
namespace {

// In the order of the enumerations.
struct TypeEntry {
  const char* name;
  std::size_t size;
};
constexpr std::array<TypeEntry, 12> kTypes{{{"float64", 8},
                                            {"float32", 4},
                                            {"float16", 2},
                                            {"bfloat16", 2},
                                            {"float8_e4m3", 1},
                                            {"float8_e5m2", 1},
                                            {"int64", 8},
                                            {"int32", 4},
                                            {"int8", 1},
                                            {"uint64", 8},
                                            {"uint32", 4},
                                            {"uint8", 1}}};
constexpr std::array kReductions{"sum", "prod", "min", "max", "avg"};

template <class Enumeration>
std::vector<Enumeration> first(std::size_t count) {
  std::vector<Enumeration> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(static_cast<Enumeration>(i));
  return all;
}

}  // namespace

std::size_t size_of(DataType type) { return kTypes[static_cast<std::size_t>(type)].size; }
const char* name_of(DataType type) { return kTypes[static_cast<std::size_t>(type)].name; }
const char* name_of(Reduction reduction) {
  return kReductions[static_cast<std::size_t>(reduction)];
}

bool is_float8(DataType type) {
  return type == DataType::float8_e4m3 || type == DataType::float8_e5m2;
}

std::vector<DataType> all_data_types() { return first<DataType>(kTypes.size()); }
std::vector<Reduction> all_reductions() { return first<Reduction>(kReductions.size()); }

template <class Byte>
BasicView<Byte> BasicView<Byte>::slice(std::size_t offset, std::size_t length) const {
  ENSURE(offset <= count && length <= count - offset,
         fmt::format("slice [{}, +{}) of {} elements", offset, length, count));
  using Address = std::conditional_t<std::is_const_v<Byte>, const std::byte*, std::byte*>;
  return BasicView(static_cast<Address>(data) + offset * size_of(type), length, type, place);
}

template struct BasicView<void>;
template struct BasicView<const void>;

std::string readable_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.4g} {}", bytes, units[unit]);
}

}  // namespace shakedown
