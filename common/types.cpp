#include "common/types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/error.hpp"

namespace shakedown {
namespace {

struct TypeEntry {
  DataType type;
  const char* name;
  std::size_t size;
};
constexpr std::array<TypeEntry, 12> kTypes{{
    {DataType::float64, "float64", 8},
    {DataType::float32, "float32", 4},
    {DataType::float16, "float16", 2},
    {DataType::bfloat16, "bfloat16", 2},
    {DataType::float8_e4m3, "float8_e4m3", 1},
    {DataType::float8_e5m2, "float8_e5m2", 1},
    {DataType::int64, "int64", 8},
    {DataType::int32, "int32", 4},
    {DataType::int8, "int8", 1},
    {DataType::uint64, "uint64", 8},
    {DataType::uint32, "uint32", 4},
    {DataType::uint8, "uint8", 1},
}};

struct ReductionEntry {
  Reduction reduction;
  const char* name;
};
constexpr std::array<ReductionEntry, 5> kReductions{{{Reduction::sum, "sum"},
                                                     {Reduction::prod, "prod"},
                                                     {Reduction::min, "min"},
                                                     {Reduction::max, "max"},
                                                     {Reduction::avg, "avg"}}};

const TypeEntry& entry(DataType type) {
  for (const TypeEntry& e : kTypes)
    if (e.type == type) return e;
  throw InternalError("unknown data type");
}

}  // namespace

std::size_t size_of(DataType type) { return entry(type).size; }
const char* name_of(DataType type) { return entry(type).name; }

bool is_float8(DataType type) {
  return type == DataType::float8_e4m3 || type == DataType::float8_e5m2;
}

const char* name_of(Reduction reduction) {
  for (const ReductionEntry& e : kReductions)
    if (e.reduction == reduction) return e.name;
  throw InternalError("unknown reduction");
}

std::vector<DataType> all_data_types() {
  std::vector<DataType> types(kTypes.size());
  std::transform(kTypes.begin(), kTypes.end(), types.begin(),
                 [](const TypeEntry& e) { return e.type; });
  return types;
}

std::vector<Reduction> all_reductions() {
  std::vector<Reduction> reductions(kReductions.size());
  std::transform(kReductions.begin(), kReductions.end(), reductions.begin(),
                 [](const ReductionEntry& e) { return e.reduction; });
  return reductions;
}

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
