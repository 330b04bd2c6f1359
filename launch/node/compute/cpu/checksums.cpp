#include "launch/node/compute/checksums.hpp"

namespace shakedown::node::cpu {
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

}  // namespace shakedown::node::cpu
