#include "launch/node/compute/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/ensure.hpp"
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

std::string range_of(const std::vector<WrongSum>& sums, const char* what) {
  if (sums.empty()) return fmt::format("no sum of a {}", what);
  return fmt::format("{} {}{} from {} to {}", sums.size(), what, sums.size() == 1 ? "" : "s",
                     sums.front().index, sums.back().index);
}

}  // namespace

std::string text_of(const WrongSums& wrong, const ProductSpec& spec) {
  if (wrong.none()) return "";
  if (wrong.rows.size() == 1 && wrong.columns.size() == 1)
    return fmt::format("element ({}, {}) of {} x {} differs by {}", wrong.rows[0].index,
                       wrong.columns[0].index, spec.m, spec.n, wrong.columns[0].difference);
  return fmt::format("wrong sums of {} and of {}, of {} x {}", range_of(wrong.rows, "row"),
                     range_of(wrong.columns, "column"), spec.m, spec.n);
}

ProductVerifier::ProductVerifier(const ProductSpec& spec, std::uint64_t seed, Device& device,
                                 Stream& stream)
    : spec_(spec),
      device_(device),
      kernels_(make_compute_kernels(device.kind())),
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
  kernels_->rows_of(c, {spec_.m, spec_.n}, {}, row_sums_.view(DataType::int64), stream);
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
  const double deviation = spec.type == ProductType::int8    ? 30 * 30
                           : spec.type == ProductType::nvfp4 ? 4.0 / 3 * 1.5 * 1.5
                                                             : 4.0 / 3;
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

void write_on_host(View x, const Ramp& ramp) {
  auto* const to = static_cast<std::uint64_t*>(x.data);
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < x.count; ++i) to[i] = ramp.word(i);
}

WordErrors check_on_host(ConstView x, const Ramp& ramp) {
  const auto* const from = static_cast<const std::uint64_t*>(x.data);
  unsigned long long count = 0;
  unsigned long long first = WordErrors().first;
#pragma omp parallel for schedule(static) reduction(+ : count) reduction(min : first)
  for (std::size_t i = 0; i < x.count; ++i) {
    if (from[i] == ramp.word(i)) continue;
    ++count;
    first = std::min<unsigned long long>(first, i);
  }
  return {count, first};
}

WordErrors WordChecker::check(ConstView x, std::size_t pieces,
                              const std::function<Ramp(std::uint64_t piece)>& expected,
                              Stream& stream) const {
  ENSURE(pieces > 0 && x.count % pieces == 0, "words outside of pieces are not checked");
  const std::vector<WordErrors> none(pieces);
  upload<WordErrors>(device_, stream, wrong_.data(), none);
  const std::size_t words = x.count / pieces;
  auto* const wrong = static_cast<WordErrors*>(wrong_.data());
  for (std::size_t piece = 0; piece < pieces; ++piece)
    kernels_->check(x.slice(piece * words, words), expected(piece), wrong + piece, stream);
  const auto found = download<WordErrors>(device_, stream, wrong, pieces);
  WordErrors all;
  for (std::size_t piece = pieces; piece-- > 0;) {
    all.count += found[piece].count;
    if (found[piece].count > 0) all.first = piece * words + found[piece].first;
  }
  return all;
}

}  // namespace shakedown::node
