// Loops over the elements of a product's matrices, on all threads.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>

#include "common/types.hpp"
#include "common/usage_error.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/compute/stream_kernels.hpp"

namespace shakedown::node::cpu {

/// visit(i, bits): what element i of an operand is, its rows in this order; on all threads.
template <class Visit>
void for_each_element(std::size_t count, const OperandRule& rule, const LineOrder& order,
                      std::int64_t columns, Visit&& visit) {
  const auto rows = static_cast<std::int64_t>(count) / columns;
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      visit(static_cast<std::size_t>(row * columns + column),
            operand_bits(rule, static_cast<std::uint64_t>(order.original(row) * columns + column)));
}

/// As the kernel gpu::fill_operand.
inline void fill_operand(View x, const OperandRule& rule, const LineOrder& order,
                         std::int64_t columns) {
  const std::size_t width = size_of(x.type);
  auto* const to = static_cast<std::byte*>(x.data);
  for_each_element(x.count, rule, order, columns, [&](std::size_t i, std::uint64_t bits) {
    std::memcpy(to + i * width, &bits, width);  // little-endian, as all machines here
  });
}

/// As the kernel gpu::compare_operand.
inline void compare_operand(ConstView x, const OperandRule& rule, const LineOrder& order,
                            std::int64_t columns, WordErrors& wrong) {
  const std::size_t width = size_of(x.type);
  const auto* const from = static_cast<const std::byte*>(x.data);
  for_each_element(x.count, rule, order, columns, [&](std::size_t i, std::uint64_t bits) {
    if (std::memcmp(from + i * width, &bits, width) == 0) return;
#pragma omp critical(shakedown_operand_errors)
    {
      ++wrong.count;
      wrong.first = std::min<unsigned long long>(wrong.first, i);
    }
  });
}

// Products by oneDNN.

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
      : spec_(spec),
        a_(device, bytes(spec.m * spec.k, operand_type(spec.type))),
        b_(device, bytes(spec.n * spec.k, operand_type(spec.type))),
        c_(device, bytes(elements_of_result(spec), result_type(spec.type))),
        description_(describe(engine_, spec)),
        matmul_(description_) {}

  const ProductSpec& spec() const override { return spec_; }
  std::string algorithm() const override {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{} {}", version->major, version->minor, version->patch,
                       description_.impl_info_str());
  }

  std::vector<std::string> algorithms() const override { return {algorithm()}; }

  void fill(Operands operands, std::uint64_t seed, const Turn& turn, Stream&) override {
    if (operands == Operands::integers) check_exact(spec_);
    fill_operand(a(), operand_rule(spec_.type, operands, seed, 0), turn.rows, spec_.k);
    fill_operand(b(), operand_rule(spec_.type, operands, seed, 1), turn.columns, spec_.k);
  }
  void compare(Operands operands, std::uint64_t seed, const Turn& turn, WordErrors* wrong,
               Stream&) override {
    compare_operand(a(), operand_rule(spec_.type, operands, seed, 0), turn.rows, spec_.k, wrong[0]);
    compare_operand(b(), operand_rule(spec_.type, operands, seed, 1), turn.columns, spec_.k,
                    wrong[1]);
  }
  void run(Stream&) override {
    const auto memory = [&](const Desc& description, View matrix) {
      return dnnl::memory(description, engine_, matrix.data);
    };
    matmul_.execute(stream_, {{DNNL_ARG_SRC, memory(description_.src_desc(), a())},
                              {DNNL_ARG_WEIGHTS, memory(description_.weights_desc(), b())},
                              {DNNL_ARG_DST, memory(description_.dst_desc(), c())}});
    stream_.wait();
  }
  void move_result(std::int64_t rows) override { c_row_ = rows; }

  View a() override { return a_.view(operand_type(spec_.type)); }
  View b() override { return b_.view(operand_type(spec_.type)); }
  View c() override { return result_in(c_, spec_, c_row_); }

 private:
  static std::size_t bytes(std::int64_t elements, DataType type) {
    return static_cast<std::size_t>(elements) * size_of(type);
  }

  ProductSpec spec_;
  Buffer a_, b_, c_;
  std::int64_t c_row_ = 0;
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

using checksums::OperandSource;
using checksums::with_source;

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

class HostChecksums final : public Checksums {
 public:
  void columns_of(const OperandRule& rule, MatrixShape shape, View sums, Stream&) const override {
    sum_columns(OperandSource{rule}, shape, integers(sums));
  }
  void columns_of(ConstView c, MatrixShape shape, View sums, Stream&) const override {
    with_source(c, [&](const auto& source) { sum_columns(source, shape, integers(sums)); });
  }
  void rows_of(const OperandRule& rule, MatrixShape shape, ConstView weights, View sums,
               Stream&) const override {
    sum_rows(OperandSource{rule}, shape, static_cast<const std::int64_t*>(weights.data),
             integers(sums));
  }
  void rows_of(ConstView c, MatrixShape shape, View sums, Stream&) const override {
    with_source(c, [&](const auto& source) { sum_rows(source, shape, nullptr, integers(sums)); });
  }
};

}  // namespace

std::unique_ptr<Checksums> make_checksums() { return std::make_unique<HostChecksums>(); }

namespace {

std::uint64_t* words(View x) { return static_cast<std::uint64_t*>(x.data); }
const std::uint64_t* words(ConstView x) { return static_cast<const std::uint64_t*>(x.data); }

class HostStreamKernels final : public StreamKernels {
 public:
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

std::unique_ptr<StreamKernels> make_stream_kernels() {
  return std::make_unique<HostStreamKernels>();
}

}  // namespace shakedown::node::cpu
