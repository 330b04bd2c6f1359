#include "launch/node/compute/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/hash.hpp"

namespace shakedown::node {
namespace {

Buffer int64_buffer(Device& device, std::int64_t count) {
  return Buffer(device, static_cast<std::size_t>(count) * sizeof(std::int64_t));
}

std::vector<WrongSum> differences(const std::vector<std::int64_t>& found,
                                  const std::vector<std::int64_t>& expected) {
  std::vector<WrongSum> wrong;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != expected[i])
      wrong.push_back({static_cast<std::int64_t>(i), found[i] - expected[i]});
  return wrong;
}

const WrongSum* only_with(const std::vector<WrongSum>& sums, std::int64_t difference) {
  const WrongSum* only = nullptr;
  for (const WrongSum& sum : sums) {
    if (sum.difference != difference) continue;
    if (only != nullptr) return nullptr;
    only = &sum;
  }
  return only;
}

std::string range_of(const std::vector<WrongSum>& sums, const char* what) {
  if (sums.empty()) return fmt::format("no sum of a {}", what);
  return fmt::format("{} {}{} from {} to {}", sums.size(), what, sums.size() == 1 ? "" : "s",
                     sums.front().index, sums.back().index);
}

}  // namespace

std::vector<WrongElement> located(const WrongSums& wrong) {
  std::vector<WrongElement> elements;
  if (wrong.rows.size() == 1) {
    for (const WrongSum& column : wrong.columns)
      elements.push_back({wrong.rows[0].index, column.index, column.difference});
    return elements;
  }
  if (wrong.columns.size() == 1) {
    for (const WrongSum& row : wrong.rows)
      elements.push_back({row.index, wrong.columns[0].index, row.difference});
    return elements;
  }
  for (const WrongSum& row : wrong.rows) {
    const WrongSum* const column = only_with(wrong.columns, row.difference);
    if (column != nullptr && only_with(wrong.rows, row.difference) != nullptr)
      elements.push_back({row.index, column->index, row.difference});
  }
  return elements;
}

std::string text_of(const WrongSums& wrong, const ProductSpec& spec) {
  if (wrong.none()) return "";
  const std::vector<WrongElement> elements = located(wrong);
  if (elements.size() == 1 && wrong.rows.size() == 1)
    return fmt::format("element ({}, {}) of {} x {} differs by {}", elements[0].row,
                       elements[0].column, spec.m, spec.n, elements[0].difference);
  return fmt::format("wrong sums of {} and of {}, of {} x {}", range_of(wrong.rows, "row"),
                     range_of(wrong.columns, "column"), spec.m, spec.n);
}

ProductVerifier::ProductVerifier(const ProductSpec& spec, std::uint64_t seed, Device& device,
                                 Stream& stream)
    : spec_(spec),
      device_(device),
      kernels_(device.kind() == BackendKind::gpu ? gpu::make_checksums() : cpu::make_checksums()),
      row_sums_(int64_buffer(device, spec.m)),
      column_sums_(int64_buffer(device, spec.n)) {
  check_exact(spec);
  const OperandRule a = operand_rule(spec.type, Operands::integers, seed, 0);
  const OperandRule b = operand_rule(spec.type, Operands::integers, seed, 1);
  const Buffer weights = int64_buffer(device, spec.k);
  const View w = weights.view(DataType::int64);
  kernels_->columns_of(b, {spec.n, spec.k}, w, stream);
  kernels_->rows_of(a, {spec.m, spec.k}, w, row_sums_.view(DataType::int64), stream);
  kernels_->columns_of(a, {spec.m, spec.k}, w, stream);
  kernels_->rows_of(b, {spec.n, spec.k}, w, column_sums_.view(DataType::int64), stream);
  expected_rows_ = sums(row_sums_, spec.m, stream);
  expected_columns_ = sums(column_sums_, spec.n, stream);
}

WrongSums ProductVerifier::check(ConstView c, Stream& stream) const {
  device_.zero(row_sums_.data(), row_sums_.bytes(), stream);  // they may hold what is expected
  kernels_->rows_of(c, {spec_.m, spec_.n}, row_sums_.view(DataType::int64), stream);
  kernels_->columns_of(c, {spec_.m, spec_.n}, column_sums_.view(DataType::int64), stream);
  return {differences(sums(row_sums_, spec_.m, stream), expected_rows_),
          differences(sums(column_sums_, spec_.n, stream), expected_columns_)};
}

std::vector<std::int64_t> ProductVerifier::sums(const Buffer& sums, std::int64_t count,
                                                Stream& stream) const {
  return download<std::int64_t>(device_, stream, sums.data(), static_cast<std::size_t>(count));
}

double sampled_error(Product& product, std::uint64_t seed, int samples, Device& device,
                     Stream& stream, std::uint64_t choice) {
  const ProductSpec& spec = product.spec();
  const View c = product.c();
  const number_format::Format format = number_format::format_of(c.type);
  const double deviation = spec.type == ProductType::int8 ? 30 * 30 : 4.0 / 3;
  Random random(derive_seed(seed, choice));
  double worst = 0;
  for (int sample = 0; sample < samples; ++sample) {
    const auto row = random.below(static_cast<std::size_t>(spec.m));
    const auto column = random.below(static_cast<std::size_t>(spec.n));
    const std::size_t index = row * static_cast<std::size_t>(spec.n) + column;
    const auto bytes = download<std::uint8_t>(
        device, stream, static_cast<const std::byte*>(c.data) + index * size_of(c.type),
        size_of(c.type));
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes.data(), bytes.size());
    double expected = 0;
    const auto k = static_cast<std::size_t>(spec.k);
    for (std::size_t l = 0; l < k; ++l)
      expected += operand_value(spec.type, Operands::full_entropy, seed, 0, row * k + l) *
                  operand_value(spec.type, Operands::full_entropy, seed, 1, column * k + l);
    const double error = std::fabs(number_format::decode(format, bits) - expected);
    worst = std::max(worst, error / (deviation * std::sqrt(static_cast<double>(spec.k))));
  }
  return worst;
}

double tolerance(ProductType type) {
  switch (type) {
    case ProductType::fp64: return 1e-12;
    case ProductType::fp32: return 1e-4;
    case ProductType::tf32: return 1e-2;
    case ProductType::fp16: return 1e-2;
    case ProductType::int8: return 0;
    default: return 4e-2;  // C is bfloat16: 2^-9 of elements of up to some ten deviations
  }
}

}  // namespace shakedown::node
