// Products by oneDNN, and loops over matrices and words on all threads.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>

#include "common/types.hpp"
#include "common/usage_error.hpp"
#include "launch/node/compute/kernels.hpp"
#include "launch/node/compute/verify.hpp"

namespace shakedown::node::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Matmul = dnnl::matmul;

dnnl::memory::data_type dnnl_type(DataType type) {
  using Type = dnnl::memory::data_type;
  switch (type) {
    case DataType::float32: return Type::f32;
    case DataType::float16: return Type::f16;
    case DataType::bfloat16: return Type::bf16;
    case DataType::int8: return Type::s8;
    case DataType::int32: return Type::s32;
    default: throw UsageError(fmt::format("the cpu backend has no products of {}", name_of(type)));
  }
}

/// Throws dnnl::error where this processor has no implementation.
Matmul::primitive_desc describe(const dnnl::engine& engine, const ProductSpec& spec) {
  const auto operand = dnnl_type(operand_type(spec.type));
  const Desc a({spec.m, spec.k}, operand, Tag::ab);
  const Desc b({spec.k, spec.n}, operand, Tag::ba);  // rows of B are columns of its transpose
  const Desc c({spec.m, spec.n}, dnnl_type(result_type(spec.type)), Tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c};
#else
  return {Matmul::desc(a, b, c), engine};
#endif
}

/// TF32 is a format of GPUs.
bool has_type(const dnnl::engine& engine, ProductType type) {
  if (type == ProductType::tf32) return false;
  try {
    describe(engine, {type, 64, 64, 64});
    return true;
  } catch (const dnnl::error&) {
    return false;
  } catch (const UsageError&) {
    return false;
  }
}

class DnnlProduct final : public Product {
 public:
  DnnlProduct(const ProductSpec& spec, Device& device)
      : Product(spec, device), description_(describe(engine_, spec)), matmul_(description_) {}

  std::string algorithm() const override {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{} {}", version->major, version->minor, version->patch,
                       description_.impl_info_str());
  }

  std::vector<std::string> algorithms() const override { return {algorithm()}; }

  void run(Stream&) override {
    const auto memory = [&](const Desc& description, View matrix) {
      return dnnl::memory(description, engine_, matrix.data);
    };
    matmul_.execute(stream_, {{DNNL_ARG_SRC, memory(description_.src_desc(), a())},
                              {DNNL_ARG_WEIGHTS, memory(description_.weights_desc(), b())},
                              {DNNL_ARG_DST, memory(description_.dst_desc(), c())}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  Matmul::primitive_desc description_;
  Matmul matmul_;
};

}  // namespace

std::vector<ProductType> product_types() {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  std::vector<ProductType> types;
  for (const ProductType type : all_product_types())
    if (has_type(engine, type)) types.push_back(type);
  return types;
}

std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream&,
                                      const std::string& algorithm) {
  auto product = std::make_unique<DnnlProduct>(spec, device);
  if (!algorithm.empty() && algorithm != product->algorithm())
    throw UsageError(fmt::format("algorithm '{}': this processor's oneDNN has '{}' for {} products",
                                 algorithm, product->algorithm(), name_of(spec.type)));
  return product;
}

namespace {

using checksums::with_source;

/// visit(i, bits): what word i of an operand is, its rows in this order; on all threads.
template <class Visit>
void for_each_word(std::size_t count, const OperandRule& rule, const LineOrder& order,
                   std::int64_t columns, Visit&& visit) {
  const auto rows = static_cast<std::int64_t>(count) / columns;
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      visit(static_cast<std::size_t>(row * columns + column),
            operand_word(rule, static_cast<std::uint64_t>(order.original(row) * columns + column)));
}

std::int64_t* integers(View view) { return static_cast<std::int64_t*>(view.data); }

template <class Source>
void sum_columns(const Source& source, MatrixShape shape, std::int64_t* sums) {
#pragma omp parallel for schedule(static)
  for (std::int64_t column = 0; column < shape.columns; ++column) {
    std::uint64_t sum = 0;
    for (std::int64_t row = 0; row < shape.rows; ++row)
      sum += static_cast<std::uint64_t>(
          source(static_cast<std::uint64_t>(row * shape.columns + column)));
    sums[column] = static_cast<std::int64_t>(sum);
  }
}

template <class Source>
void sum_rows(const Source& source, MatrixShape shape, const std::int64_t* weights,
              std::int64_t* sums) {
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    std::uint64_t sum = 0;
    for (std::int64_t column = 0; column < shape.columns; ++column)
      sum += static_cast<std::uint64_t>(
                 source(static_cast<std::uint64_t>(row * shape.columns + column))) *
             static_cast<std::uint64_t>(weights != nullptr ? weights[column] : 1);
    sums[row] = static_cast<std::int64_t>(sum);
  }
}

std::uint64_t* words(View x) { return static_cast<std::uint64_t*>(x.data); }
const std::uint64_t* words(ConstView x) { return static_cast<const std::uint64_t*>(x.data); }

class HostKernels final : public ComputeKernels {
 public:
  void fill_operand(View x, std::int64_t columns, const OperandRule& rule, const LineOrder& order,
                    Stream&) const override {
    const std::size_t width = size_of(x.type);
    auto* const to = static_cast<std::byte*>(x.data);
    for_each_word(x.count, rule, order, columns, [&](std::size_t i, std::uint64_t bits) {
      std::memcpy(to + i * width, &bits, width);  // little-endian, as all machines here
    });
  }
  void compare_operand(View x, std::int64_t columns, const OperandRule& rule,
                       const LineOrder& order, WordErrors* wrong, Stream&) const override {
    const std::size_t width = size_of(x.type);
    const auto* const from = static_cast<const std::byte*>(x.data);
    for_each_word(x.count, rule, order, columns, [&](std::size_t i, std::uint64_t bits) {
      if (std::memcmp(from + i * width, &bits, width) == 0) return;
#pragma omp critical(shakedown_operand_errors)
      {
        ++wrong->count;
        wrong->first = std::min<unsigned long long>(wrong->first, i);
      }
    });
  }
  void columns_of(const SummedMatrix& matrix, MatrixShape shape, View sums,
                  Stream&) const override {
    with_source(matrix, [&](const auto& source) { sum_columns(source, shape, integers(sums)); });
  }
  void rows_of(const SummedMatrix& matrix, MatrixShape shape, ConstView weights, View sums,
               Stream&) const override {
    with_source(matrix, [&](const auto& source) {
      sum_rows(source, shape, static_cast<const std::int64_t*>(weights.data), integers(sums));
    });
  }

  void write(View x, const Ramp& ramp, Stream&) const override { write_on_host(x, ramp); }
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
    const WordErrors found = check_on_host(x, ramp);
    wrong->count += found.count;
    wrong->first = std::min(wrong->first, found.first);
  }
};

}  // namespace

std::unique_ptr<ComputeKernels> make_compute_kernels() { return std::make_unique<HostKernels>(); }

}  // namespace shakedown::node::cpu
