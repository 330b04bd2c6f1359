// Whether a product is right: of integers exactly, by the sums of the rows and columns of C (Huang
// & Abraham 1984), of full-entropy operands by some elements that the host recomputes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launch/node/compute/product.hpp"

namespace shakedown::node {

/// A row or column of C whose sum is not the expected one.
struct WrongSum {
  std::int64_t index = 0;
  std::int64_t difference = 0;  // found - expected
};
struct WrongSums {
  std::vector<WrongSum> rows, columns;
  bool none() const { return rows.empty() && columns.empty(); }
};

struct WrongElement {
  std::int64_t row = 0, column = 0;
  std::int64_t difference = 0;  // found - expected; meaningless where C is no integer there
};
/// The wrong elements, where the sums name them: a row and a column with the same difference that
/// no others have, or all in one row or column.
std::vector<WrongElement> located(const WrongSums& wrong);

/// "element (5, 17) of 96 x 64 differs by 4", or the ranges of rows and columns; empty: none.
std::string text_of(const WrongSums& wrong, const ProductSpec& spec);

/// What C of integers must sum to: sum_j C[i, j] = sum_k A[i, k] (sum_j B[j, k]), and so for
/// columns. The expected sums come from the operands' formula by kernels of our own, not from
/// memory: an operand that was written or kept wrong is found too. Every change of C is found that
/// alters a row's or a column's sum: each single element's, and all but those that cancel in every
/// row and column. The sign of a zero does not count.
class ProductVerifier {
 public:
  /// Throws UsageError where C would not be exact.
  ProductVerifier(const ProductSpec& spec, std::uint64_t seed, Device& device, Stream& stream);

  /// Waits for the stream. C is of operands of integers of the same seed.
  WrongSums check(ConstView c, Stream& stream) const;

 private:
  std::vector<std::int64_t> sums(const Buffer& sums, std::int64_t count, Stream& stream) const;

  ProductSpec spec_;
  Device& device_;
  std::unique_ptr<Checksums> kernels_;
  Buffer row_sums_, column_sums_;
  std::vector<std::int64_t> expected_rows_, expected_columns_;
};

/// The largest error of `samples` elements of C, others for each `choice`, as a share of the
/// standard deviation of C's elements; C is of full-entropy operands of `seed`. Waits for the
/// stream.
double sampled_error(Product& product, std::uint64_t seed, int samples, Device& device,
                     Stream& stream, std::uint64_t choice = 0);
/// The error that rounding may cause there.
double tolerance(ProductType type);

}  // namespace shakedown::node
