#include "common/mpi_types.hpp"

#include <fmt/format.h>

#include <array>
#include <climits>

#include "common/host_reduction.hpp"

namespace shakedown {
namespace {

template <DataType type, Reduction op>
void reduce_half(void* in, void* inout, int* count, MPI_Datatype*) {
  const std::array<const void*, 2> inputs{in, inout};
  reduce_elements(op, inputs, {inout, static_cast<std::size_t>(*count), type, Place::host});
}

}  // namespace

MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::float64: return MPI_DOUBLE;
    case DataType::float32: return MPI_FLOAT;
    case DataType::float16:
    case DataType::bfloat16: return MPI_UINT16_T;
    case DataType::int64: return MPI_INT64_T;
    case DataType::int32: return MPI_INT32_T;
    case DataType::int8: return MPI_INT8_T;
    case DataType::uint64: return MPI_UINT64_T;
    case DataType::uint32: return MPI_UINT32_T;
    case DataType::uint8: return MPI_UINT8_T;
    case DataType::float8_e4m3:
    case DataType::float8_e5m2:
      throw UsageError(fmt::format("{}: MPI has no such type, NCCL on GPUs does", name_of(type)));
  }
  throw InternalError("unknown data type");
}

int count_of(std::size_t count) {
  ENSURE(count <= INT_MAX, fmt::format("{} elements: MPI counts are 32-bit", count));
  return static_cast<int>(count);
}

MpiOperations::MpiOperations() {
  const auto add = [this]<DataType type, Reduction op>() {
    MPI_Op made = MPI_OP_NULL;
    CHECK_MPI(MPI_Op_create(reduce_half<type, op>, 1, &made));
    halves_.push_back({type, op, made});
  };
  const auto add_all = [&]<DataType type>() {
    add.template operator()<type, Reduction::sum>();
    add.template operator()<type, Reduction::prod>();
    add.template operator()<type, Reduction::min>();
    add.template operator()<type, Reduction::max>();
  };
  add_all.operator()<DataType::float16>();
  add_all.operator()<DataType::bfloat16>();
}

MpiOperations::~MpiOperations() {
  for (Half& half : halves_) MPI_Op_free(&half.op);
}

MPI_Op MpiOperations::of(DataType type, Reduction reduction) const {
  const Reduction known = reduction == Reduction::avg ? Reduction::sum : reduction;
  for (const Half& half : halves_)
    if (half.type == type && half.reduction == known) return half.op;
  switch (known) {
    case Reduction::prod: return MPI_PROD;
    case Reduction::min: return MPI_MIN;
    case Reduction::max: return MPI_MAX;
    default: return MPI_SUM;
  }
}

}  // namespace shakedown
